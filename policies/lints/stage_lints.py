"""Lint: prefill and decode pools that do not meet, or meet at a cost."""

from collections.abc import Iterator
from typing import Final

from policies.findings import Finding
from policies.lints.lint_context import SetRule, has_verdicts
from policies.model import PolicySet
from policies.remote_prefill import Stage


def _alone(policies: PolicySet) -> Iterator[Finding]:
    named = {prefill for _, prefill in _pairs(policies)}
    served = {decode for decode, _ in _pairs(policies)}
    for name, pool in policies.pools.items():
        if pool.spec.stage is Stage.PREFILL and name not in named:
            why, fix = "no route lets it prefill", f"set prefill: {{pool: {name}}} in the route to the decode pool"
        elif pool.spec.stage is Stage.DECODE and name not in served:
            why = "no route to it has prefill: its engines prefill themselves"
            fix = "set prefill in a route to it, or remove stage"
        else:
            continue
        yield Finding(
            code="SG152",
            origin=policies.origin("EnginePool", name, "spec.stage"),
            path="spec.stage",
            message=f"pool {name}: {why}",
            fix=fix,
        )


def _far(policies: PolicySet) -> Iterator[Finding]:
    for decode, prefill in _pairs(policies):
        of_decode, of_prefill = policies.pools[decode].spec, policies.pools[prefill].spec
        if of_decode.kubernetes is not None or of_prefill.kubernetes is not None:
            continue  # Zones are those of nodes, known only to a server.
        lone = {one.zone for one in of_decode.endpoints} - {one.zone for one in of_prefill.endpoints}
        if lone and of_prefill.endpoints:
            where = ", ".join(sorted(zone or "none" for zone in lone))
            yield Finding(
                code="SG153",
                origin=policies.origin("EnginePool", prefill, "spec.endpoints"),
                path="spec.endpoints",
                message=f"pool {prefill}: no engine in zone {where}, where pool {decode} decodes: each KV cache "
                "crosses zones",
                fix="add prefill engines there",
            )


def _hedged(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        first = route.spec.pools[0].pool
        if route.spec.prefill is not None and policies.effective[first].hedging.enabled:
            yield Finding(
                code="SG154",
                origin=policies.origin("ModelRoute", name, "spec.prefill"),
                path="spec.prefill",
                message=f"route {name}: pool {first} hedges: a hedge has the prompt prefilled again",
                fix="disable hedging for the pool, or remove prefill",
            )


def _unread(policies: PolicySet) -> Iterator[Finding]:
    for prefill in sorted({prefill for _, prefill in _pairs(policies)}):
        if not has_verdicts(policies.pools[prefill].spec):
            yield Finding(
                code="SG155",
                origin=policies.origin("EnginePool", prefill, "spec.stage"),
                path="spec.stage",
                message=f"pool {prefill}: it has neither probes nor agents, and no proxy sees its answers: a dead "
                "engine stays named",
                fix="enable the probe of the pool, or run agents",
            )


def _not_compared(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        if route.spec.prefill is None or not route.spec.prefill.while_faster:
            continue
        blind = [one.pool for one in route.spec.pools if not policies.pools[one.pool].spec.first_token_gate]
        if blind:
            yield Finding(
                code="SG176",
                origin=policies.origin("ModelRoute", name, "spec.prefill.whileFaster"),
                path="spec.prefill.whileFaster",
                message=f"route {name}: pool {', '.join(blind)} has no first-token gate, so no first token is "
                "seen: nothing is compared",
                fix="install the gate and set firstTokenGate: true on the pool, or remove whileFaster",
            )


def _pairs(policies: PolicySet) -> list[tuple[str, str]]:
    """Decode pools with the pool that prefills for them."""
    return sorted(
        {
            (share.pool, route.spec.prefill.pool)
            for route in policies.routes.values()
            for share in route.spec.pools
            if route.spec.prefill is not None
        }
    )


STAGE_RULES: Final[tuple[SetRule, ...]] = (_alone, _far, _hedged, _unread, _not_compared)
