"""The checks of ``doctor``: server, ports, engines, Envoys, cluster."""

import asyncio
import http.client
import platform
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from engine.address import ListenAddress
from policies.findings import PolicyErrors
from policies.lints.lint import lint
from policies.load import load
from policies.model import PolicySet
from xds_server.admin.server_info import libraries
from xds_server.admin_api.endpoints import ENGINES, PROXIES, SERVER_INFO
from xds_server.admin_api.server_types import ServerInfo
from xds_server.admin_api.status_types import EngineStatus
from xds_server.cli.admin_client import AdminApiError, NoAnswerError, fetch
from xds_server.cli.diagnostics import from_errors
from xds_server.cli.peer_certificates import (
    certificate_validity,
    on_agents,
    on_certificates,
    on_unexpected_tls,
    unverified_context,
)
from xds_server.cli.server_conditions import fetch_conditions
from xds_server.diagnosis import process_checks
from xds_server.diagnosis.check_result import Check, fail, of_condition, ok, warn
from xds_server.diagnosis.cluster_checks import (
    GATES,
    NODES,
    READS,
    WRITES,
    Right,
    grace_period_checks,
    rbac_checks,
)
from xds_server.k8s.api_resources import PODS, ApiResource
from xds_server.k8s.client_config import ClientConfig, open_kube_api
from xds_server.k8s.kube_api import ApiError, KubeApi, ObjectSelector
from xds_server.model.text import count_text, names_text
from xds_server.serve_config import ConfigError, address_of

REVIEWS: Final = ApiResource(
    group="authorization.k8s.io",
    version="v1",
    plural="selfsubjectaccessreviews",
    kind="SelfSubjectAccessReview",
    namespaced=False,
)
MOST_PODS: Final = 5_000

_EVERY: Final = (*READS, *NODES, *WRITES, *GATES)


def cluster_checks(kubeconfig: Path | None, context: str, namespace: str) -> Iterator[Check]:
    """Checks of a cluster; an unreachable one is a warning."""
    try:
        answers, pods = asyncio.run(_asked(ClientConfig(kubeconfig=kubeconfig, context=context), namespace))
    except ApiError as error:
        yield warn("Kubernetes", "SG242", str(error))
        return
    yield ok("Kubernetes", "the API answers")
    yield from rbac_checks(answers)
    yield from grace_period_checks(pods)


async def _asked(access: ClientConfig, namespace: str) -> tuple[dict[Right, bool | None], Sequence[Any]]:
    async with open_kube_api(access) as api:
        await api.get_raw("/version")
        found = await asyncio.gather(*(_may(api, right, namespace) for right in _EVERY))
        return dict(zip(_EVERY, found, strict=True)), await _pods(api, namespace)


async def _may(api: KubeApi, right: Right, namespace: str) -> bool | None:
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


async def _pods(api: KubeApi, namespace: str) -> list[Any]:
    """Pods that this account may list; none where that is forbidden, which the permissions show."""
    found: list[Any] = []
    more = ""
    try:
        while True:
            page = await api.page(ObjectSelector(resource=PODS, namespace=namespace), more=more)
            found += page.items
            more = page.more
            if not more or len(found) >= MOST_PODS:
                return found
    except ApiError as error:
        if error.forbidden or error.missing:
            return found
        raise


TIMEOUT_S: Final = 2.0
MOST_ENGINES: Final = 64
"""Engines that are asked directly, evenly spread; the server has reports of all."""

GATE_PATH: Final = "/switchgear/in_flight"
"""Path of the first-token gate, which answers its own machine only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """Answer to a GET. ``skew_s``: how far the other clock is ahead; None without a Date header."""

    status: int
    body: bytes
    skew_s: float | None


def all_checks(
    admin: str,
    *,
    xds: str,
    envoys: Sequence[str],
    policies: Sequence[Path],
    cluster: tuple[Path | None, str, str] | None,
) -> Iterator[Check]:
    """Every check, nearest first; an unreachable server is a failed check."""
    yield from process_checks.on_versions("this command line", platform.python_version(), libraries())
    try:
        asked_s = time.time()
        about = fetch(admin, SERVER_INFO).value
        answered_s = time.time()
    except AdminApiError as error:
        said = f"{admin} refuses: {error.format_message()}"
        yield fail("server", "SG220", said, "Authenticate with --token-file, or --cert and --key.")
    except NoAnswerError as error:
        yield from _without_server(admin, error.format_message())
    else:
        try:
            yield from _server(admin, about, asked_s, answered_s)
            yield from _xds_port(xds or _xds_of(admin, about.listen))
        except (NoAnswerError, AdminApiError) as error:  # it stopped meanwhile; earlier checks stand
            yield fail("server", "SG220", error.format_message())
    for url in envoys:
        yield _envoy_clock(url)
    if policies:
        yield from policy_file_checks(policies)
    if cluster is not None:
        yield from cluster_checks(*cluster)


def _server(admin: str, about: ServerInfo, asked_s: float, answered_s: float) -> Iterator[Check]:
    yield process_checks.on_server_version(libraries()["switchgear"], about.libraries.get("switchgear", ""))
    yield from process_checks.on_versions("the server", about.python, about.libraries)
    skew_s = process_checks.skew_s(about.now_unix_s, asked_s, answered_s)
    yield process_checks.on_clock("the server", skew_s) or ok("clock of the server", "agrees with this machine")
    proxies, engines = fetch(admin, PROXIES).value.proxies, fetch(admin, ENGINES).value.engines
    agents = sum(one.agent is not None for one in engines)
    yield process_checks.on_files(about, len(proxies) + agents)
    if disk := process_checks.on_disk(about.disk):
        yield disk
    found = fetch_conditions(admin)
    yield from map(of_condition, found)
    yield from _passed(frozenset(one.code for one in found), len(proxies), len(engines))
    yield from process_checks.on_envoys(about.proxies)
    yield from on_agents(engines, time.time())
    by_tls = about.tls_pools  # None from an older server
    yield from _engines(engines, frozenset(about.gated_pools), None if by_tls is None else frozenset(by_tls))


_PARTS: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    "policies": (
        "accepted and served",
        frozenset({"SG200", "SG201", "SG202", "SG203", "SG207", "SG217", "SG219", "SG229"}),
    ),
    "proxies": ("{proxies} connected, all in sync", frozenset({"SG204", "SG205", "SG206", "SG224"})),
    "engines": (
        "{engines} reporting, all in rotation",
        frozenset({"SG208", "SG222", "SG223", "SG227", "SG228", "SG272", "SG273"}),
    ),
    "certificates and access": (
        "all files of the server are usable",
        frozenset({"SG210", "SG211", "SG212", "SG213", "SG214", "SG215", "SG216", "SG218", "SG225"}),
    ),
}
"""What is ok without these conditions."""


def _passed(codes: frozenset[str], proxies: int, engines: int) -> Iterator[Check]:
    for subject, (sentence, spoiled_by) in _PARTS.items():
        if not codes & spoiled_by:
            yield ok(subject, sentence.format(proxies=proxies, engines=engines))


def _without_server(admin: str, why: str) -> Iterator[Check]:
    yield fail("server", "SG220", why)
    url = urlsplit(admin if "//" in admin else f"http://{admin}")
    if url.hostname and _connects(url.hostname, url.port or 80) is None and "no server answers" not in why:
        yield fail("admin port", "SG235", f"something else listens at {url.hostname}:{url.port or 80}")


def _xds_of(admin: str, listen: str) -> str:
    """Address that Envoys connect to: the configured port, on the host of the admin port."""
    try:
        address = address_of(listen)
    except ConfigError:
        return ""
    host = urlsplit(admin if "//" in admin else f"http://{admin}").hostname or "127.0.0.1"
    usual = address.host in ("0.0.0.0", "::", "") or address.is_loopback
    return str(ListenAddress(host if usual else address.host, address.port)) if address.port else ""


def _xds_port(where: str) -> Iterator[Check]:
    if not where:
        yield warn("xDS port", "SG221", "the server chose a free port: name it with --xds to check it")
        return
    try:
        address = address_of(where)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--xds") from error
    trouble = _connects(address.host, address.port)
    if trouble:
        yield fail("xDS port", "SG221", f"{address}: {trouble}")
    else:
        yield ok("xDS port", f"{address} accepts connections")


def _engines(
    engines: Sequence[EngineStatus], gated: frozenset[str], by_tls: frozenset[str] | None
) -> Iterator[Check]:
    """Clocks and gates of engines, as seen from this machine; an engine may be unreachable from here."""
    known = [one for one in engines if one.address]
    chosen = known[:: max(1, len(known) // MOST_ENGINES)][:MOST_ENGINES]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda one: _get(one.address, one.port, GATE_PATH), chosen))
        silent = [one for one, answer in zip(chosen, answers, strict=True) if _may_speak_tls(answer)]
        shown = list(pool.map(lambda one: certificate_validity(one.address, one.port, TIMEOUT_S), silent))
        secure = {_name(one) for one, certificate in zip(silent, shown, strict=True) if certificate is not None}
        answers = list(pool.map(lambda one, had: _securely(one) if _name(one) in secure else had, chosen, answers))
    yield from on_certificates(zip(silent, shown, strict=True), time.time())
    if by_tls is not None:
        yield from on_unexpected_tls((one for one in silent if _name(one) in secure), by_tls)
    skewed, with_gate, without, unseen = [], 0, [], []
    for engine, answer in zip(chosen, answers, strict=True):
        name = _name(engine)
        if answer is not None and answer.skew_s is not None:
            skewed += [one] if (one := process_checks.on_clock(f"engine {name}", answer.skew_s)) else []
        if engine.pool not in gated:
            continue
        if answer is not None and answer.status == http.client.OK and b"waiting_for_first_token" in answer.body:
            with_gate += 1
        elif answer is not None and _is_here(engine.address):
            without.append(name)
        else:
            unseen.append(name)
    yield from skewed
    if without:
        yield fail("first-token gate", "SG250", f"missing at {names_text(without)}")
    if unseen:
        yield warn("first-token gate", "SG251", f"not reachable from here at {names_text(unseen)}")
    if with_gate:
        yield ok("first-token gate", f"at {count_text(with_gate, 'engine')}")


def _securely(engine: EngineStatus) -> HttpResponse | None:
    """Answer of the gate over TLS; None also where the engine requires a client certificate."""
    return _get(engine.address, engine.port, GATE_PATH, secure=True)


def _name(engine: EngineStatus) -> str:
    return f"{engine.pool}/{engine.engine}"


def _may_speak_tls(answer: HttpResponse | None) -> bool:
    """Whether the answer to plain HTTP is what a TLS port gives."""
    return answer is None or answer.status == http.client.BAD_REQUEST


def _envoy_clock(url: str) -> Check:
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host, port = None, 0
    if not host:
        raise click.BadParameter(f"{url!r} is not an address", param_hint="--envoy-admin")
    answer = _get(host, port, "/ready")
    if answer is None:
        return warn(f"Envoy {url}", "SG221", "its admin port is not reachable from here")
    skew_s = answer.skew_s or 0.0
    return process_checks.on_clock(f"Envoy {url}", skew_s) or ok(f"Envoy {url}", "answers; its clock agrees")


def policy_file_checks(paths: Sequence[Path]) -> Iterator[Check]:
    """What ``switchgear validate`` finds, as one line."""
    try:
        policies = load(paths)
    except PolicyErrors as errors:
        found = from_errors(errors)
        first = f"{found[0].code} {found[0].origin}: {found[0].message}"
        yield fail("policy files", "SG260", f"{count_text(len(found), 'error')}: {first}")
        return
    findings = lint(policies)
    if findings:
        codes = sorted({one.code for one in findings})
        yield warn("policy files", "SG261", f"{count_text(len(findings), 'warning')}: {names_text(codes)}")
    else:
        pools, routes = count_text(len(policies.pools), "pool"), count_text(len(policies.routes), "route")
        yield ok("policy files", f"{pools} and {routes}, no findings")
    yield from external_service_checks(policies)


def external_service_checks(policies: PolicySet) -> Iterator[Check]:
    """Services that Envoys call for listeners, as seen from this machine; Envoys may be in another network."""
    fields: dict[tuple[str, int], set[str]] = {}
    for route in policies.routes.values():
        for one in route.spec.listener.external_services():
            place = one.service.address, one.service.port
            fields.setdefault(place, set()).add(f"{one.field} of {route.metadata.name}")
    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda place: _connects(*place), fields)
        for (place, named), trouble in zip(fields.items(), answers, strict=True):
            subject, users = f"service {ListenAddress(*place)}", names_text(sorted(named))
            if trouble:
                yield warn(subject, "SG262", f"{trouble}, from this machine ({users})")
            else:
                yield ok(subject, f"accepts connections from this machine ({users})")


def _connects(host: str, port: int) -> str | None:
    """None, or the reason why there is no connection."""
    try:
        with socket.create_connection((host, port), timeout=TIMEOUT_S):
            return None
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__


def _get(host: str, port: int, path: str, *, secure: bool = False) -> HttpResponse | None:
    connection = (
        http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=unverified_context())
        if secure
        else http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    )
    try:
        asked_s = time.time()
        connection.request("GET", path)
        answer = connection.getresponse()
        answered_s = time.time()
        body = answer.read(4096)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return HttpResponse(
        status=answer.status, body=body, skew_s=_skew_s(answer.getheader("Date"), asked_s, answered_s)
    )


def _skew_s(date: str | None, asked_s: float, answered_s: float) -> float | None:
    if not date:
        return None
    try:
        return process_checks.skew_s(parsedate_to_datetime(date).timestamp(), asked_s, answered_s)
    except ValueError:
        return None


def _is_here(address: str) -> bool:
    """Whether an address belongs to this machine: the gate answers only there."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as trial:
            trial.bind((address, 0))
    except OSError:
        return False
    return True
