"""Write fitted policies as the policy file of a lab's control plane. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from chaos.load.request_sender import RequestTemplate
from chaos.scenario.experiment_plan import EnginePlacement
from chaos.testbed.caller_fit import caller_limits, tokens_between
from chaos.testbed.policy_fit import PolicyFit, slots_ratio
from chaos.testbed.service_costs import longest_request_s, slowest_token_s
from policies.document import API_VERSION
from policies.pool import EnginePool
from policies.quantity import format_duration, parse_duration
from policies.resilience import DEFAULT, ResiliencePolicy, ResilienceSpec
from policies.route import ModelRoute

LISTEN_ADDRESS: Final = "127.0.0.1"

REQUEST_TIMES: Final = (
    ("limits", "maxWait"),
    ("retries", "retryAfter", "max"),
    ("timeouts", "streaming", "firstToken"),
    ("timeouts", "streaming", "betweenTokens"),
    ("timeouts", "streaming", "total"),
    ("timeouts", "nonStreaming", "perTry"),
    ("timeouts", "nonStreaming", "total"),
    ("hedging", "delay"),
    ("drain", "deadline"),
)
"""Fields of a ResiliencePolicy that depend on the duration of requests."""

OBJECTIVE_TIMES: Final = tuple(
    ("objectives", latency, share) for latency in ("firstToken", "total") for share in ("p95", "p99")
)
"""The same of a ModelRoute or an EnginePool."""

TOKEN_GAP_TIMES: Final = tuple(("objectives", "betweenTokens", share) for share in ("p95", "p99"))
"""The same of an EnginePool, whose engines have their own pace in the lab."""

PACES: Final = 3.0
"""Least limit between tokens, in tokens of the lab's engines: shorter ones would measure a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabEngineAddress:
    """Address of a lab engine; ``agent_port`` is None without an agent."""

    port: int
    agent_port: int | None = None


def policy_documents(
    fitting: PolicyFit, addresses: Mapping[str, LabEngineAddress], ports: Mapping[int, int]
) -> str:
    """The policy file of the lab's control plane.

    ``addresses`` are those of all engines by name; ``ports`` maps the operator's listener ports to the lab's.
    """
    experiment = fitting.experiment
    kept = {fitting.pool, *(one.name for one in fitting.side_pools)}
    token_s = slowest_token_s(experiment)
    said = [
        _pool(
            fitting.policies.pools[fitting.pool],
            model=fitting.model,
            engines=experiment.engines,
            addresses=addresses,
            service_s=experiment.service_s,
            longest=longest_request_s(experiment),
            gate=fitting.gate,
        )
    ]
    said += [
        _pool(
            fitting.policies.pools[side.name],
            model=side.model,
            engines=side.engines,
            addresses=addresses,
            service_s=side.service_s * side.times_tokens,
            longest=longest_request_s(experiment) / experiment.service_s * side.service_s,
            gate=side.gate,
        )
        for side in fitting.side_pools
    ]
    paces_s = [token_s, *(token_s / experiment.service_s * side.service_s for side in fitting.side_pools)]
    for pool, pace_s in zip(said, paces_s, strict=True):
        _scale_objectives(pool["spec"], fitting.time_scale, pace_s)
    said += [_route(one, ports, fitting) for one in fitting.routes]
    said += _policies(fitting, kept)
    return yaml.safe_dump_all([{"apiVersion": API_VERSION, **one} for one in said], sort_keys=False)


def _written(document: EnginePool | ModelRoute | ResiliencePolicy) -> dict[str, Any]:
    """Fields of the spec that the operator set, as YAML values."""
    dumped: dict[str, Any] = document.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return dumped


def _document(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name}, "spec": dict(spec)}


def _pool(
    pool: EnginePool,
    *,
    model: str,
    engines: Sequence[EnginePlacement],
    addresses: Mapping[str, LabEngineAddress],
    service_s: float,
    longest: float,
    gate: bool,
) -> dict[str, Any]:
    endpoints = []
    for one in engines:
        at = addresses[one.name]
        agent = {} if at.agent_port is None else {"agentPort": at.agent_port}
        place = {name: said for name, said in (("zone", one.zone), ("region", one.region)) if said}
        where = {"name": one.name, "address": "127.0.0.1", "port": at.port, **agent, **place}
        endpoints.append({**where, "slots": one.slots})
    changed = {
        "model": model,
        "endpoints": endpoints,
        "slotsPerEngine": max(one.slots for one in engines),
        "serviceTime": _text(service_s),
        "longestServiceTime": _text(max(service_s, longest)),
        "firstTokenGate": gate,
    }
    written = _written(pool)
    # Lab engines use plain HTTP on loopback; the certificates belong to other machines.
    written.pop("tls", None)
    return _document("EnginePool", pool.metadata.name, {**written, **changed})


def _route(route: ModelRoute, ports: Mapping[int, int], fitting: PolicyFit) -> dict[str, Any]:
    said = route.spec.listener
    listener: dict[str, Any] = {"port": ports[said.port], "address": LISTEN_ADDRESS}
    asking = RequestTemplate(path=fitting.shape.path, model=fitting.shape.model or fitting.model)
    listener |= caller_limits(said, fitting.experiment, asking, fitting.time_scale)
    written = _written(route)
    above = route.spec.match.tokens_above
    between = tokens_between(fitting.experiment.spec.load, said, asking)
    if above is not None and between is not None:
        # Equal ones would be the same match.
        smaller = sum((one.spec.match.tokens_above or above) < above for one in fitting.routes)
        written["match"]["tokensAbove"] = between + smaller
    _scale_objectives(written, fitting.time_scale)
    return _document("ModelRoute", route.metadata.name, {**written, "listener": listener})


def _scale_objectives(spec: dict[str, Any], scale: float, token_s: float = 0.0) -> None:
    """Divide the limits of all objectives; those between tokens are at least ``PACES`` times ``token_s``."""
    for paths, least_s in ((OBJECTIVE_TIMES, 0.0), (TOKEN_GAP_TIMES, PACES * token_s)):
        for path in paths:
            value = _got(spec, path)
            if value is not None:
                _put(spec, path, _text(max(parse_duration(value) / scale, least_s)))


def _policies(fitting: PolicyFit, kept: set[str]) -> list[dict[str, Any]]:
    """Policies for kept pools; the default policy sets all request times explicitly."""
    scale, found = fitting.time_scale, []
    ratio = slots_ratio(fitting.policies.pools[fitting.pool], fitting.experiment)
    usual = ResilienceSpec().model_dump(mode="json", by_alias=True)
    everywhere: dict[str, Any] = {}
    for path in REQUEST_TIMES:
        _put(everywhere, path, _got(usual, path))
    for name, policy in {DEFAULT: None, **fitting.policies.policies}.items():
        said = _laid(everywhere, {}) if name == DEFAULT else {}
        if policy is not None:
            said = _laid(said, _written(policy))
        if "pools" in said:
            said["pools"] = [one for one in said["pools"] if one in kept]
            if not said["pools"]:
                continue
        for path in REQUEST_TIMES:
            value = _got(said, path)
            if value is not None:
                _put(said, path, _text(parse_duration(value) / scale))
        most = _got(said, ("limits", "maxConcurrent"))
        if most is not None:
            _put(said, ("limits", "maxConcurrent"), max(1, round(most * ratio)))
        found.append(_document("ResiliencePolicy", name, said))
    return found


def _laid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``below`` overridden by ``above``."""
    found = {name: _laid(value, {}) if isinstance(value, dict) else value for name, value in below.items()}
    for name, value in above.items():
        deeper = isinstance(value, dict) and isinstance(found.get(name, {}), dict)
        found[name] = _laid(found.get(name, {}), value) if deeper else value
    return found


def _got(said: Mapping[str, Any], path: Sequence[str]) -> Any:
    for step in path:
        said = said.get(step) or {}
    return said or None


def _put(said: dict[str, Any], path: Sequence[str], value: Any) -> None:
    if value is None:
        return
    for step in path[:-1]:
        said = said.setdefault(step, {})
    said[path[-1]] = value


def _text(seconds: float) -> str:
    return format_duration(round(seconds, 4))
