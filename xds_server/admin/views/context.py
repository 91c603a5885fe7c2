"""State that explanations are computed from, and resolution of names."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from policies.document import declaration
from policies.model import PolicySet
from policies.quantity import format_duration
from xds_server.admin_api.objective_types import ObjectiveStatus
from xds_server.admin_api.status_types import EventStatus, RuleStatus
from xds_server.admin_api.tenant_types import TenantStatus
from xds_server.decide.decisions import Decisions
from xds_server.decide.diff.change import Subject
from xds_server.ledger.event import ClockReading, Event, place_of
from xds_server.ledger.event_store import EventStore
from xds_server.model.fleet import EngineId, Fleet
from xds_server.model.order import Order
from xds_server.telemetry.token_use import TokenRatios

_NO_ORDERS: Mapping[EngineId, Order] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewContext:
    """Served policies, decisions, orders and stored events at one moment.

    ``adapter_troubles``: why an engine did not load an adapter, by pool and adapter.
    """

    policies: PolicySet
    fleet: Fleet
    decisions: Decisions
    event_store: EventStore
    now: ClockReading
    orders: Mapping[EngineId, Order] = field(default_factory=lambda: _NO_ORDERS)
    objectives: Callable[[], Sequence[ObjectiveStatus]] = tuple
    tenants: Callable[[], Sequence[TenantStatus]] = tuple
    adapter_troubles: Mapping[tuple[str, str], str] = field(default_factory=dict)
    token_ratios: Callable[[], Mapping[str, TokenRatios]] = dict


class UnknownNameError(Exception):
    """A name matches no subject or several; the message lists candidates."""


def subject_named(name: str, scene: ViewContext) -> Subject:
    """Resolve ``pool/engine``, a pool, a zone, or an engine name that is unique.

    The prefixes ``pool:``, ``zone:`` and ``engine:`` disambiguate. Raises ``UnknownNameError`` for no match or
    several.
    """
    kind, _, bare = name.partition(":")
    if kind not in ("pool", "zone", "engine"):
        kind, bare = "", name
    found: dict[str, Subject] = {}
    for pool, engines in scene.fleet.pools.items():
        if kind in ("", "pool") and bare == pool:
            found[f"pool:{pool}"] = Subject(pool=pool)
        for engine in engines:
            if kind in ("", "zone") and bare == engine.zone and bare:
                found[f"zone:{bare}"] = Subject(zone=bare)
            if kind in ("", "engine") and bare in (engine.id.engine, str(engine.id)):
                found[str(engine.id)] = Subject(pool=pool, engine=engine.id.engine)
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise UnknownNameError(f"{name!r} is ambiguous: use {_listed(sorted(found))}")
    near = difflib.get_close_matches(bare, _names(scene), n=3, cutoff=0.5)
    hint = f"did you mean {_listed(near)}?" if near else "`switchgear get engines` lists them"
    raise UnknownNameError(f"no engine, zone or pool {name!r}; {hint}")


def _names(scene: ViewContext) -> Sequence[str]:
    names: set[str] = set(scene.fleet.pools)
    for engines in scene.fleet.pools.values():
        for engine in engines:
            names.update((engine.id.engine, str(engine.id), engine.zone))
    return sorted(names - {""})


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:5])
    if len(names) > len(shown):
        shown.append(f"{len(names) - len(shown)} more")
    return " or ".join((", ".join(shown[:-1]), shown[-1])) if len(shown) > 1 else shown[0]


def rule_status(rule: str, pool: str, policies: PolicySet) -> RuleStatus | None:
    """The field, its value for this pool and its origin; None if no field decides."""
    kind, _, path = rule.partition(".")
    if not path or pool not in policies.pools:
        return None
    value: Any = policies.effective[pool] if kind == "ResiliencePolicy" else policies.pools[pool].spec
    duration = False
    for step in path.split(".")[1:]:
        name = _attribute(value, step)
        duration = declaration(type(value).model_fields[name]).unit == "duration"
        value = getattr(value, name)
    return RuleStatus(field=path, value=_shown(value, duration=duration), place=place_of(rule, pool, policies))


def _attribute(spec: Any, alias: str) -> str:
    """Attribute of a policy model that is written ``alias`` in files."""
    names: dict[str, str] = {found.alias or name: name for name, found in type(spec).model_fields.items()}
    return names[alias]


def _shown(value: Any, *, duration: bool) -> str:
    """The value as written in a policy file; empty if unset."""
    if value is None:
        return ""
    if duration:
        return format_duration(value)
    if hasattr(value, "model_fields_set"):
        return ""  # a block; its fields are in `switchgear explain`
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def event_status(event: Event, now: ClockReading) -> EventStatus:
    """The event as a status row."""
    subject = event.subject
    return EventStatus(
        number=event.number,
        at_unix_s=event.at_unix_s,
        age_s=round(max(0.0, now.unix_s - event.at_unix_s), 3),
        kind=event.kind.value,
        subject=str(subject),
        pool=subject.pool,
        engine=subject.engine,
        zone=subject.zone,
        proxy=subject.proxy,
        before=event.before,
        after=event.after,
        evidence=event.evidence,
        rule=event.rule,
        place=event.place,
        returns=event.returns,
        until_in_s=None if event.until_unix_s is None else round(event.until_unix_s - now.unix_s, 3),
        alarm=event.alarm,
        numbers=dict(event.numbers),
        times=event.times,
        first_age_s=round(max(0.0, now.unix_s - event.first_unix_s), 3),
        requests=event.requests,
    )
