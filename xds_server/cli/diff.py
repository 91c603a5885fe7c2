"""``switchgear diff``: show what new policies would change, in fields and in live traffic."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import click

from command_line.output_format import DATA, as_data, output_option
from policies.findings import PolicyErrors
from policies.load import load_contents
from policies.model import PolicySet
from xds_server.admin_api.endpoints import POOLS, PROXIES, VERSION
from xds_server.cli.admin_client import fetch
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import as_text, from_errors, printable
from xds_server.cli.light_messages import light_messages
from xds_server.cli.policies_option import load_policies, policies_option
from xds_server.engine_health.engine_addresses import host_names, resolved_fleet
from xds_server.model.fleet import Fleet, fleet_of
from xds_server.model.text import count_text
from xds_server.model.view import View

with light_messages():
    from xds_server.rollout.history.field_changes import THERE, FieldChange
    from xds_server.rollout.history.impact import Impact, ResourceEffect
    from xds_server.rollout.history.policy_diff import (
        PolicyDiff,
        PoolChange,
        PoolFigures,
        ViewEffects,
        policy_diff,
    )

RUNNING: Final = "running"
_SHOWN: Final = 40
_SIGNS: Final = {"added": "+", "changed": "~", "removed": "-"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVersion:
    """The served version, as ``apply --expect`` takes it; ``number`` is 0 where it is not a version."""

    number: int
    digest: str


@click.command(name="diff")
@policies_option("New policies: file or folder, - for stdin; repeatable.", required=True)
@click.option(
    "--against",
    multiple=True,
    default=(RUNNING,),
    show_default=True,
    metavar="PATH|running",
    help="Old policies: file or folder (no server needed), or those that the server serves now.",
)
@click.option("--all", "everything", is_flag=True, help=f"Show all changes, not {_SHOWN} of each kind.")
@connection_options
@output_option()
def command(
    filename: tuple[Path, ...], against: tuple[str, ...], everything: bool, admin: str, output: str
) -> int:
    """Show what new policies would change.

    Lists changed fields, changed Envoy resources with their impact (cold: interrupts requests in flight or resets
    counts; hot: neither), pool figures, and affected pools, routes and proxies. The comparison assumes that every
    engine is in rotation and ignores traffic.

    Against a server it names the compared version, for `switchgear apply --expect`.

    Exit code: 0 no difference, 1 differences, 2 problems in policies, usage error or no server.
    """
    new = _loaded(filename)
    if against == (RUNNING,):
        old, views, arrivals, served = served_policies(admin)
        return print_diff(
            diff_of_policies(old, new, views, arrivals), output, everything=everything, against=served
        )
    missing = [one for one in against if not Path(one).exists()]
    if missing:
        raise click.BadParameter(f"{missing[0]} does not exist", param_hint="--against")
    old = _loaded([Path(one) for one in against])
    return print_diff(diff_of_policies(old, new, None, None), output, everything=everything)


def _loaded(paths: Sequence[Path]) -> PolicySet:
    try:
        return load_policies(paths)
    except PolicyErrors as errors:
        click.echo(as_text(from_errors(errors)), err=True)
        raise click.ClickException("the policies have problems") from errors


def policies_of_texts(texts: Mapping[str, str]) -> PolicySet:
    """The policies in texts that a server stores."""
    try:
        return load_contents({Path(name): text.encode() for name, text in texts.items()})
    except PolicyErrors as errors:
        click.echo(as_text(from_errors(errors)), err=True)
        raise click.ClickException(
            "this switchgear refuses the server's policies; use the server's version"
        ) from errors


def served_policies(admin: str) -> tuple[PolicySet, Mapping[View, int], Mapping[str, float], ServedVersion]:
    """The served policies, proxies by view, requests per second by pool, and the served version."""
    served = fetch(admin, VERSION, "serving").value
    against = ServedVersion(number=served.number, digest=served.digest)
    views: dict[View, int] = {}
    for proxy in fetch(admin, PROXIES).value.proxies:
        view = View(zone=proxy.zone, role=proxy.role, pools=frozenset(proxy.pools))
        views[view] = views.get(view, 0) + 1
    arrivals = {pool.pool: pool.arrivals_per_s or 0.0 for pool in fetch(admin, POOLS).value.pools}
    return policies_of_texts(served.texts), views, arrivals, against


def diff_of_policies(
    old: PolicySet,
    new: PolicySet,
    views: Mapping[View, int] | None,
    arrivals_per_s: Mapping[str, float] | None,
) -> PolicyDiff:
    """The comparison, with stand-in addresses for host names, which only a server resolves."""
    stand_ins = {name: _stand_in(name) for name in host_names(old) | host_names(new)}
    known = views or None

    def addressed(fleet: Fleet) -> Fleet:
        found = resolved_fleet(fleet, stand_ins)
        return found if found.pools else fleet_of({})

    return policy_diff(old, new, views=known, arrivals_per_s=arrivals_per_s, addressed=addressed)


def _stand_in(name: str) -> str:
    """An unused address (240.0.0.0/4), the same for the same name."""
    number = int.from_bytes(blake2b(name.encode(), digest_size=3).digest())
    return f"240.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def print_diff(found: PolicyDiff, output: str, *, everything: bool, against: ServedVersion | None = None) -> int:
    """Print the comparison and what it was ``against``; 1 when something differs."""
    if output in DATA:
        click.echo(as_data(diff_record(found, against), output), nl=False)
    else:
        click.echo("\n".join(_lines(found, None if everything else _SHOWN)))
        if against is not None:
            click.echo(_passed_on(against))
    return 0 if found.same else 1


def diff_record(found: PolicyDiff, against: ServedVersion | None) -> Mapping[str, Any]:
    """The comparison as data."""
    more = {"same": found.same, "cold": found.cold, "against": None if against is None else asdict(against)}
    # Through JSON: YAML knows no enums.
    plain: Mapping[str, Any] = json.loads(json.dumps({**asdict(found), **more}))
    return plain


def _passed_on(against: ServedVersion) -> str:
    digest = printable(str(against.digest)[:12])
    expect = against.number or digest
    named = f"version {against.number} ({digest})" if against.number else f"{digest} (not a version)"
    return f"Compared with {named}. To apply only if it is still current: switchgear apply --expect {expect}"


def _lines(found: PolicyDiff, most: int | None) -> Iterator[str]:
    if found.same:
        yield "no difference"
        return
    if found.fields:
        yield "fields"
        yield from _capped([f"  {_field(one)}" for one in found.fields], most)
    for view in found.views:
        yield f"resources of {_views(view)}"
        yield from _capped([f"  {_effect(one)}" for one in view.effects], most)
    if not found.views:
        yield "resources: no difference; proxies get no update"
    if found.pools:
        yield "pools"
        yield from _capped([f"  {_pool(one)}" for one in found.pools], most)
    yield from _blast(found)


def _capped(lines: Sequence[str], most: int | None) -> Iterator[str]:
    yield from lines[:most]
    if most is not None and len(lines) > most:
        yield f"  ... and {len(lines) - most} more (--all shows them)"


def _field(one: FieldChange) -> str:
    if not one.path or THERE in (one.old, one.new):
        return printable(
            f"{'+' if one.old is None else '-'} {one.document} {one.path}".rstrip() + f"  ({one.place})"
        )
    old, new = (value if value is not None else "(unset)" for value in (one.old, one.new))
    return printable(f"~ {one.document} {one.path}: {old} -> {new}  ({one.place})")


def _views(view: ViewEffects) -> str:
    who = printable("; ".join(view.views))
    return f"{who} ({view.proxies} prox{'y' if view.proxies == 1 else 'ies'})" if view.proxies else who


def _effect(one: ResourceEffect) -> str:
    heat = click.style(one.heat.upper(), fg="red", bold=True) if one.heat is Impact.COLD else one.heat.value
    places = f"  ({one.origins[0]})" if one.origins else ""
    return f"{_SIGNS[one.how]} {one.type} {one.name}: {heat}: {one.meaning}{printable(places)}"


def _pool(one: PoolChange) -> str:
    if one.before is None or one.after is None:
        here = one.after or one.before
        figures = ", ".join(f"{name} {value}" for name, value in _figures(here).items()) if here else ""
        return f"{'+' if one.before is None else '-'} {one.pool}: {figures}"
    before, after = _figures(one.before), _figures(one.after)
    moved = ", ".join(f"{name} {before[name]} -> {after[name]}" for name in before if before[name] != after[name])
    return f"~ {one.pool}: {moved}"


def _figures(pool: PoolFigures) -> Mapping[str, str]:
    return {
        "engines": str(pool.engines),
        "slots": f"{pool.slots:g}",
        "admission limit": "none" if pool.ceiling is None else str(pool.ceiling),
        "worst-case tries per request": str(pool.tries),
        "worst-case load": f"{pool.worst_load:g}x",
    }


def _blast(found: PolicyDiff) -> Iterator[str]:
    blast = found.blast
    affected = [f"pools {', '.join(blast.pools) or 'none'}", f"routes {', '.join(blast.routes) or 'none'}"]
    if blast.proxies is not None:
        affected.append(f"{blast.proxies[0]} of {blast.proxies[1]} proxies")
    if blast.traffic_percent is not None:
        affected.append(f"{blast.traffic_percent:g} % of current traffic")
    yield f"affected: {'; '.join(affected)}"
    if found.cold:
        yield f"live traffic: {count_text(found.cold, 'cold change')}"
    else:
        yield "live traffic: hot changes only"
