"""Policy objects of the API server, converted to the documents a file would contain.

Keeps name, namespace, labels and annotations, except kubectl's own. Discovered engines are written as endpoints,
so that a stored document can be served without a cluster.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from pydantic import ValidationError

from policies.discovery import Discovery
from policies.document import API_VERSION
from xds_server.k8s.kube_api import KubeObject
from xds_server.k8s.policy_object import ACCEPTED
from xds_server.k8s.source.endpoint_entry import EndpointEntry

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_PAIRS: Final = 64
"""Limit of labels, or annotations, of a document; the cluster allows more."""

_DIGITS: Final = 5

# Valid in JSON but not in YAML; U+2028 would also end a line.
_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyManifest:
    """A policy object. ``spec`` and ``last_accepted`` are JSON; the latter is empty if the status has none.

    ``observed``: generation of the status. ``accepted``: the status accepts this spec. ``created``: creation time
    as sortable text.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    created: str
    metadata: str
    spec: str
    observed: int
    last_accepted: str
    accepted: bool = False

    @property
    def file(self) -> str:
        """Name among the policy files."""
        return f"{self.namespace}/{self.kind}/{self.name}"

    @property
    def precedence(self) -> tuple[str, str, str, str]:
        """Precedence of conflicting objects: the lower stays."""
        return self.created, self.namespace, self.name, self.kind


def manifest_reader(kind: str) -> Callable[[KubeObject], PolicyManifest]:
    """Parser of objects of this kind."""

    def held(item: KubeObject) -> PolicyManifest:
        metadata, status = _block(item.get("metadata")), _block(item.get("status"))
        kept: dict[str, Any] = {"name": metadata.get("name")}
        if metadata.get("namespace"):
            kept["namespace"] = metadata["namespace"]
        for part in ("labels", "annotations"):
            pairs = sorted((key, text) for key, text in _block(metadata.get(part)).items() if key != _LAST_APPLIED)
            if pairs:
                kept[part] = dict(pairs[:_PAIRS])
        last = status.get("lastAccepted")
        generation = _whole(metadata.get("generation"))
        return PolicyManifest(
            kind=kind,
            namespace=str(metadata.get("namespace") or ""),
            name=str(metadata.get("name") or ""),
            uid=str(metadata.get("uid") or ""),
            generation=generation,
            resource_version=str(metadata.get("resourceVersion") or ""),
            created=str(metadata.get("creationTimestamp") or ""),
            metadata=_json(kept),
            spec=_json(item.get("spec")) if "spec" in item else "",
            observed=_whole(status.get("observedGeneration")),
            last_accepted=last if isinstance(last, str) else _json(last) if isinstance(last, dict) else "",
            accepted=_is_accepted(status.get("conditions"), generation),
        )

    return held


def discovery_of(kind: str, spec: str) -> Discovery | None:
    """The ``kubernetes`` block of a pool's spec; None if absent or invalid."""
    content = _value(spec) if kind == "EnginePool" else None
    block = content.get("kubernetes") if isinstance(content, dict) else None
    if not isinstance(block, dict):
        return None
    try:
        return Discovery.model_validate_json(json.dumps(block), strict=True, by_alias=True, by_name=False)
    except ValidationError:
        return None  # the loader reports the error


def document_text(held: PolicyManifest, spec: str, found: Iterable[EndpointEntry]) -> tuple[str, tuple[str, ...]]:
    """Text of the document with this spec, and the engines left out because the author lists them."""
    content = _value(spec)
    entries = tuple(found)
    left_out: list[str] = []
    if isinstance(content, dict) and entries:
        listed = content.get("endpoints")
        by_hand = listed if isinstance(listed, list) else []
        names, places = _taken(by_hand)
        added = []
        for one in entries:
            if one.name in names or (one.address, one.port) in places:
                left_out.append(f"{one.name} is left out: already listed in spec.endpoints")
            else:
                added.append(dict(one.fields))
        content = {**content, "endpoints": [*by_hand, *added]}
    whole: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": held.kind,
        "metadata": _value(held.metadata),
    }
    if spec:
        whole["spec"] = content
    text = json.dumps(whole, ensure_ascii=False, indent=1)
    return _ESCAPED.sub(lambda one: f"\\u{ord(one.group()):04x}", text) + "\n", tuple(left_out)


def _taken(listed: Iterable[Any]) -> tuple[set[Any], set[Any]]:
    blocks = [one for one in listed if isinstance(one, dict)]
    names = {one["name"] for one in blocks if isinstance(one.get("name"), str)}
    places = {(str(one.get("address")), str(one.get("port"))) for one in blocks}
    # A port has five digits; Python refuses to parse a number with five thousand.
    return names, {(address, int(port)) for address, port in places if port.isdecimal() and len(port) <= _DIGITS}


def _is_accepted(conditions: Any, generation: int) -> bool:
    blocks = [_block(one) for one in conditions] if isinstance(conditions, list) else []
    return any(
        (one.get("type"), one.get("status"), one.get("observedGeneration")) == (ACCEPTED, "True", generation)
        for one in blocks
    )


def _value(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _block(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def texts_digest(texts: Mapping[str, str], *more: str) -> str:
    """Hash of documents by file, and of further distinguishing text."""
    hashed = blake2b(digest_size=16)
    for file in sorted(texts):
        hashed.update(f"{file}\0{texts[file]}\0".encode())
    for one in more:
        hashed.update(f"{one}\0".encode(errors="surrogateescape"))
    return hashed.hexdigest()
