"""``switchgear diff``: what other policies would change, in what they say and in what they do to live traffic."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import click

from command_line.output_format import DATA, as_data, output_option
from policies.findings import PolicyErrors
from policies.load import load, load_contents
from policies.model import PolicySet
from xds_server.admin_api.endpoints import POOLS, PROXIES, VERSION
from xds_server.cli.admin_client import fetch
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import as_text, from_errors, printable
from xds_server.cli.light_messages import light_messages
from xds_server.engine_health.engine_addresses import host_names, resolved_fleet
from xds_server.model.fleet import Fleet, fleet_of
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
    """What is served, as ``apply --expect`` names it; ``number`` is 0 where it is in no version."""

    number: int
    digest: str


@click.command(name="diff")
@click.option(
    "--policies",
    "paths",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, exists=True),
    help="Folder or file with the new policies; may be given more than once.",
)
@click.option(
    "--against",
    multiple=True,
    default=(RUNNING,),
    show_default=True,
    metavar="PATH|running",
    help="Folder or file with the old policies, which asks no server; or what the server serves now.",
)
@click.option("--all", "everything", is_flag=True, help=f"Show all, not the first {_SHOWN} of each kind.")
@connection_options
@output_option()
def command(paths: tuple[Path, ...], against: tuple[str, ...], everything: bool, admin: str, output: str) -> int:
    """Show what the policies in PATH would change.

    Said are the fields that differ, the resources of each kind of proxy with how their change acts on live traffic
    (cold: requests or counts under way are touched; hot: they are not), pools in figures, and whom it reaches.
    Every engine is taken to be well and nothing is known of traffic, so that only the policies make a difference.

    Against a server it also says which version it compared with, for `switchgear apply --expect`.

    Exit code: 0 when nothing would change, 1 when something would, 2 when policies have problems or no server
    answers.
    """
    new = _loaded(paths)
    everything |= output == "wide"
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
        return load(paths)
    except PolicyErrors as errors:
        click.echo(as_text(from_errors(errors)), err=True)
        raise click.ClickException("these policies cannot be used") from errors


def policies_of_texts(texts: Mapping[str, str]) -> PolicySet:
    """The policies in texts that a server has kept."""
    try:
        return load_contents({Path(name): text.encode() for name, text in texts.items()})
    except PolicyErrors as errors:
        click.echo(as_text(from_errors(errors)), err=True)
        raise click.ClickException("this version of switchgear refuses the policies of the server") from errors


def served_policies(admin: str) -> tuple[PolicySet, Mapping[View, int], Mapping[str, float], ServedVersion]:
    """What a server serves, to how many proxies of which view, their requests by pool; and which version it is."""
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
    """The comparison, with something in the place of host names, which are looked up while serving only."""
    stand_ins = {name: _stand_in(name) for name in host_names(old) | host_names(new)}
    known = views or None

    def addressed(fleet: Fleet) -> Fleet:
        found = resolved_fleet(fleet, stand_ins)
        return found if found.pools else fleet_of({})

    return policy_diff(old, new, views=known, arrivals_per_s=arrivals_per_s, addressed=addressed)


def _stand_in(name: str) -> str:
    """An address that nobody has (240.0.0.0/4), the same one for the same name."""
    number = int.from_bytes(blake2b(name.encode(), digest_size=3).digest())
    return f"240.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def print_diff(found: PolicyDiff, output: str, *, everything: bool, against: ServedVersion | None = None) -> int:
    """Print the comparison, and what it was ``against``; 1 when something differs."""
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
    # Through JSON, so that only what any form can say is left.
    plain: Mapping[str, Any] = json.loads(json.dumps({**asdict(found), **more}))
    return plain


def _passed_on(against: ServedVersion) -> str:
    digest = printable(str(against.digest)[:12])
    expect = against.number or digest
    named = f"version {against.number} ({digest})" if against.number else f"{digest}, which is no version"
    return f"compared with {named}: `switchgear apply --expect {expect}` is refused once another is served"


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
        yield "resources: none is different; no proxy is told anything"
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
    old, new = (value if value is not None else "(not said)" for value in (one.old, one.new))
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
        said = ", ".join(f"{name} {value}" for name, value in _figures(here).items()) if here else ""
        return f"{'+' if one.before is None else '-'} {one.pool}: {said}"
    before, after = _figures(one.before), _figures(one.after)
    moved = ", ".join(f"{name} {before[name]} -> {after[name]}" for name in before if before[name] != after[name])
    return f"~ {one.pool}: {moved}"


def _figures(pool: PoolFigures) -> Mapping[str, str]:
    return {
        "engines": str(pool.engines),
        "slots": f"{pool.slots:g}",
        "ceiling": "none" if pool.ceiling is None else str(pool.ceiling),
        "tries of one request at worst": str(pool.tries),
        "load at worst": f"{pool.worst_load:g}x",
    }


def _blast(found: PolicyDiff) -> Iterator[str]:
    blast = found.blast
    reached = [f"pools {', '.join(blast.pools) or 'none'}", f"routes {', '.join(blast.routes) or 'none'}"]
    if blast.proxies is not None:
        reached.append(f"{blast.proxies[0]} of {blast.proxies[1]} proxies")
    if blast.traffic_percent is not None:
        reached.append(f"{blast.traffic_percent:g} % of the traffic now")
    yield f"reaches {'; '.join(reached)}"
    cold = f"{found.cold} resource{'' if found.cold == 1 else 's'}"
    yield f"live traffic: {cold} change cold" if found.cold else "live traffic: everything changes hot"
