"""Asking a Kubernetes API what this account may do (SelfSubjectAccessReview), and which pods end how."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from xds_server.diagnosis.check import Check, ok, warn
from xds_server.diagnosis.cluster import GATES, NODES, READS, WRITES, Right, on_grace, on_rights
from xds_server.kube.api import Api, ApiError, Selection
from xds_server.kube.connecting import Access, connected
from xds_server.kube.resources import PODS, Resource

REVIEWS: Final = Resource(
    group="authorization.k8s.io",
    version="v1",
    plural="selfsubjectaccessreviews",
    kind="SelfSubjectAccessReview",
    namespaced=False,
)
MOST_PODS: Final = 5_000

_EVERY: Final = (*READS, *NODES, *WRITES, *GATES)


def on_cluster(kubeconfig: Path | None, context: str, namespace: str) -> Iterator[Check]:
    """Checks on a cluster; that it cannot be reached is one."""
    try:
        answers, pods = asyncio.run(_asked(Access(kubeconfig=kubeconfig, context=context), namespace))
    except ApiError as error:
        yield warn("Kubernetes", "SG242", str(error))
        return
    yield ok("Kubernetes", "the API answers")
    yield from on_rights(answers)
    yield from on_grace(pods)


async def _asked(access: Access, namespace: str) -> tuple[dict[Right, bool | None], Sequence[Any]]:
    async with connected(access) as api:
        await api.ask("/version")
        found = await asyncio.gather(*(_may(api, right, namespace) for right in _EVERY))
        return dict(zip(_EVERY, found, strict=True)), await _pods(api, namespace)


async def _may(api: Api, right: Right, namespace: str) -> bool | None:
    about = {"group": right.group, "resource": right.resource, "verb": right.verb, "subresource": right.part}
    if namespace and right not in NODES:
        about["namespace"] = namespace
    body = {
        "apiVersion": REVIEWS.api_version,
        "kind": REVIEWS.kind,
        "spec": {"resourceAttributes": {key: text for key, text in about.items() if text}},
    }
    try:
        answer = await api.create(REVIEWS, "", body)
    except ApiError as error:
        if error.missing or error.forbidden or error.status == 405:
            return None
        raise
    allowed = (answer.get("status") or {}).get("allowed")
    return allowed if isinstance(allowed, bool) else None


async def _pods(api: Api, namespace: str) -> list[Any]:
    """Pods that may be seen; none where that is forbidden, which the rights say already."""
    found: list[Any] = []
    more = ""
    try:
        while True:
            page = await api.page(Selection(resource=PODS, namespace=namespace), more=more)
            found += page.items
            more = page.more
            if not more or len(found) >= MOST_PODS:
                return found
    except ApiError as error:
        if error.forbidden or error.missing:
            return found
        raise
