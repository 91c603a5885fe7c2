"""Endpoints: which engines of a pool take requests, and how much of the traffic each zone gets.

Everything that follows telemetry and can be said per engine is said here: a push changes health and weights in
milliseconds and leaves what is in flight alone.

* An engine that is out stays listed, so that Envoy keeps counting what it has in flight. One that is dead has
  nothing in flight and is left out: when it comes back it is a new host to Envoy, free of the ejection that its
  death earned it, which would otherwise keep a recovered engine out for the whole cooldown.
* Every zone stays listed, too. One without a weight gets no traffic from Envoy (nor from gRPC), but its hosts keep
  their in-flight counts for the moment the zone is needed.
"""

from collections.abc import Mapping
from typing import Final

from engine.report import Verdict
from xds_server.decide.decisions import Decisions, Health
from xds_server.fleet import Engine
from xds_server.translate.assignment import AssignmentSpec, EndpointSpec, LocalitySpec

METADATA: Final = "switchgear"
"""Namespace of an endpoint's metadata: the engine's name under ``engine``, and its labels."""


def assignment(pool: str, engines: tuple[Engine, ...], decisions: Decisions, zone: str) -> AssignmentSpec:
    """The endpoints of a pool for callers in ``zone``, engines in the order of the policy.

    Addresses must be IP addresses: host names are resolved before the fleet gets here.
    """
    by_place: dict[tuple[str, str], list[EndpointSpec]] = {}
    for engine in engines:
        endpoint = _endpoint(engine, decisions)
        if endpoint is not None:
            by_place.setdefault((engine.region, engine.zone), []).append(endpoint)
    weights = zone_weights(pool, engines, decisions, zone)
    return AssignmentSpec(
        cluster=pool,
        localities=tuple(
            LocalitySpec(region=region, zone=name, weight=weights.get(name, 0), endpoints=tuple(endpoints))
            for (region, name), endpoints in sorted(by_place.items())
        ),
    )


def zone_weights(pool: str, engines: tuple[Engine, ...], decisions: Decisions, zone: str) -> Mapping[str, int]:
    """Weight of each engine zone for callers in ``zone``; absent means no traffic.

    Callers from a zone nobody has decided about yet share the engines by their slots.
    """
    for caller in (zone, ""):
        decided = decisions.zone_weights.get((pool, caller))
        if decided is not None:
            return decided
    slots: dict[str, int] = {}
    for engine in engines:
        if _health(engine, decisions) is Health.HEALTHY:
            slots[engine.zone] = slots.get(engine.zone, 0) + engine.slots
    return slots


def _endpoint(engine: Engine, decisions: Decisions) -> EndpointSpec | None:
    health = _health(engine, decisions)
    dead = engine.report is not None and engine.report.verdict is Verdict.DEAD
    if dead and health is not Health.HEALTHY:
        return None
    return EndpointSpec(
        address=engine.address,
        port=engine.port,
        health=health,
        weight=engine.weight,
        metadata=((METADATA, (("engine", engine.id.engine), *sorted(engine.labels.items()))),),
    )


def _health(engine: Engine, decisions: Decisions) -> Health:
    """An engine nothing was decided of takes requests, as it does when the control plane is gone."""
    decision = decisions.engines.get(engine.id)
    return Health.HEALTHY if decision is None else decision.health
