"""A golden case: its policies, who reads them, how the engines are, and the resources that come of it.

``policy.yaml`` is the case; without one, its policies are those of the case it is like. ``view.yaml`` (optional)
describes who reads and how the engines are::

    policies: [policies/examples/x.yaml]   # instead of policy.yaml; from the root of the repository
    like: example-single-pool              # the case to compare with; ``minimal`` when absent
    zone: a
    role: gateway
    pools: [llama]
    proxies: 2
    engines: {llama/e1: hung}              # verdicts, held long enough to count
    adapters: {llama/e2: [sql]}            # LoRA adapters that ready engines list; else unknown
    decided: {llama: {degradation: {level: 3, max_tokens: 64}}}  # fields in place of those decided
    weights: {llama: {e1: 0.4}}            # factors of engines that are slower than others
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from engine.report import EngineReport, Verdict
from policies.load import load_contents
from policies.model import PolicySet
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import (
    DeadlineDecision,
    DeadlineSteps,
    Decisions,
    DegradationState,
    FairShares,
    HedgeDecision,
    LargeRetryDecision,
    PoolDecisions,
    TenantShare,
    TimeLimits,
)
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.engine_health.engine_addresses import host_names, resolved_fleet
from xds_server.model.fleet import EngineId, Fleet, declared, with_report
from xds_server.model.view import View
from xds_server.translate.translated_resource import TranslatedResource
from xds_server.translate.view_resources import translate

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CASES = sorted(path.name for path in HERE.iterdir() if path.is_dir() and not path.name.startswith("_"))
WHOLE = "minimal"
"""The case that is written out in full."""


@dataclass(frozen=True, kw_only=True)
class GoldenCase:
    """``like`` names the case that this one is compared with; None for the one that is written out."""

    name: str
    like: str | None
    view: View
    resources: tuple[TranslatedResource, ...]


@cache
def golden_case(name: str) -> GoldenCase:
    """The case of this name, compiled."""
    settings = _settings(name)
    # Origins name files as the operator at the root would.
    policies = load_contents({path: (ROOT / path).read_bytes() for path in _policy_paths(name)})
    view = View(
        zone=settings.get("zone", ""),
        role=settings.get("role", "gateway"),
        pools=frozenset(settings.get("pools", ())),
        cuts=settings.get("cuts", False),
    )
    # Host names get addresses of the block for documentation, in their order.
    addresses = {host: f"192.0.2.{number}" for number, host in enumerate(sorted(host_names(policies)), 1)}
    fleet = resolved_fleet(_reported(declared(policies), policies, settings), addresses)
    proxies = ConnectedProxies(
        by_role={view.role: settings.get("proxies", 1)}, calling_zones=frozenset({view.zone})
    )
    decisions, _ = decide(policies, fleet, NO_MEMORY, proxies=proxies, now_s=10.0)
    pools = _replaced(decisions, settings.get("decided", {}))
    decisions = replace(decisions, pools={**decisions.pools, **pools})
    pools = _weighted(decisions, settings.get("weights", {}))
    decisions = replace(decisions, pools={**decisions.pools, **pools})
    return GoldenCase(
        name=name,
        like=_like(name),
        view=view,
        resources=translate(policies, fleet, decisions, view),
    )


def _settings(name: str) -> dict[str, Any]:
    path = HERE / name / "view.yaml"
    return yaml.safe_load(path.read_text()) if path.exists() else {}


def _like(name: str) -> str | None:
    return None if name == WHOLE else _settings(name).get("like", WHOLE)


def _policy_paths(name: str) -> list[Path]:
    """Where the policies of a case are, from the root of the repository."""
    named, own, like = _settings(name).get("policies"), HERE / name / "policy.yaml", _like(name)
    if named is not None:
        return [Path(path) for path in named]
    return _policy_paths(like) if like is not None and not own.exists() else [own.relative_to(ROOT)]


def _replaced(decisions: Decisions, decided: Mapping[str, dict[str, dict[str, Any]]]) -> dict[str, PoolDecisions]:
    return {
        pool: replace(decisions.pools[pool], **{name: _decision(name, values) for name, values in fields.items()})
        for pool, fields in decided.items()
    }


def _decision(name: str, values: dict[str, Any]) -> object:
    if name == "deadline":
        steps = {kind: DeadlineSteps(**values[kind]) if kind in values else None for kind in ("answer", "stream")}
        return DeadlineDecision(reason="", **steps)
    if name == "fair_shares":
        tenants = {
            (one["port"], one["tenant"]): TenantShare(
                share_per_s=1.0,
                demand_per_s=1.0,
                allowed_per_s=one["admitted"],
                admitted=one["admitted"],
                enforced=True,
                since_s=0.0,
            )
            for one in values["tenants"]
        }
        return FairShares(on=True, capacity_per_s=1.0, demand_per_s=2.0, tenants=tenants, since_s=0.0)
    if name == "large_retries":
        return LargeRetryDecision(reason="", **values)
    kinds = {"hedge": HedgeDecision, "limits": TimeLimits, "degradation": DegradationState}
    return kinds[name](reason="", since_s=0.0, **values)


def _weighted(decisions: Decisions, weights: Mapping[str, dict[str, float]]) -> dict[str, PoolDecisions]:
    return {
        pool: replace(
            decisions.pools[pool],
            weight_factors={EngineId(pool, name): factor for name, factor in factors.items()},
        )
        for pool, factors in weights.items()
    }


def _reported(fleet: Fleet, policies: PolicySet, settings: Mapping[str, Any]) -> Fleet:
    adapters: Mapping[str, list[str]] = settings.get("adapters", {})
    verdicts: Mapping[str, str] = settings.get("engines", {})
    for key, verdict in (dict.fromkeys(adapters, "ready") | verdicts).items():
        pool, _, engine = key.partition("/")
        for sequence in range(policies.pools[pool].spec.probe.unhealthy_after):
            report = EngineReport(
                pool=pool,
                engine=engine,
                verdict=Verdict(verdict),
                evidence="reported by the case",
                observed_at_s=9.0,
                sequence=sequence + 1,
                adapters=tuple(adapters[key]) if key in adapters else None,
            )
            fleet = with_report(fleet, report, 9.0)
    return fleet
