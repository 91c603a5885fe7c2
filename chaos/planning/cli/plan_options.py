"""Options shared by the plan subcommands: value types, and the source of a pool's numbers."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from chaos.planning.availability import unavailability
from chaos.planning.error import PlanError
from chaos.planning.fleet_capacity import WaitPromise
from chaos.planning.pool_situation import (
    EngineSlots,
    PoolSituation,
    pool_from_server,
    uniform_engines,
    with_objectives,
)
from chaos.planning.recorded_pool import recorded_pool
from policies.quantity import parse_duration
from xds_server.admin_api.endpoints import ENGINES, OBJECTIVES, POOL_HISTORY, POOLS
from xds_server.cli.admin_client import fetch
from xds_server.cli.completion import complete_names
from xds_server.cli.connection_options import META, connection_options

F = TypeVar("F", bound=Callable[..., Any])

MOST_ARRIVALS_PER_S: Final = 1e9
"""Far above any fleet, and within float precision of one request."""
_USUAL_WAIT_S: Final = 2.0  # limits.maxWait where no policy sets it


def duration(value: str) -> float:
    """Parse a duration with its unit as in policies, or in days; seconds."""
    try:
        if value.endswith("d") and value[:-1].replace(".", "", 1).isdigit():
            return float(value[:-1]) * 86_400
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}; write days as 2d") from error


def share(value: str) -> float:
    """Parse a share, ``0.01`` or ``1%``; it may be negative or above 1."""
    text = value.strip()
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise click.BadParameter(f"{value!r} is not a share: write 0.01 or 1%")
    return found


plot_option = click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Plot the answer to FILE.png or FILE.svg, or to FILE.html with the tables.",
)


def targets(text: str) -> tuple[float, ...]:
    """Parse comma-separated targets as allowed shortage probabilities; ``PlanError`` if one is invalid."""
    parts = [one for one in text.split(",") if one.strip()]
    if not parts:
        raise PlanError("--target is empty: write 0.999 or 99.9%")
    return tuple(unavailability(one) for one in parts)


def promise_options(function: F) -> F:
    """Add the options of the wait target."""
    late = click.option(
        "--late",
        type=share,
        metavar="SHARE",
        default="1%",
        show_default=True,
        help="Share of requests allowed to wait longer than --max-wait.",
    )
    wait = click.option(
        "--max-wait",
        "wait_s",
        type=duration,
        metavar="DURATION",
        default="2s",
        show_default=True,
        help="Maximum wait for a slot.",
    )
    return wait(late(function))


def promise(wait_s: float, late: float) -> WaitPromise:
    """Return the wait target; ``PlanError`` if it is invalid."""
    if not 0 < late < 1:
        raise PlanError(f"--late {late:g}: must be between 0 and 1 (0 % and 100 %)")
    return WaitPromise(wait_s=wait_s, late=late)


def pool_options(function: F) -> F:
    """Add the options that choose the pool and the source of its numbers."""
    options = (
        connection_options,
        click.option(
            "--recording",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Read a recording of `switchgear serve --record`, at its busiest, instead of a server.",
        ),
        click.option(
            "--pool",
            default="",
            metavar="NAME",
            shell_complete=complete_names("pools"),
            help="Pool to plan; required if there are several.",
        ),
        click.option("--engines", type=int, help="Number of identical engines (no server needed)."),
        click.option("--slots", type=float, help="Concurrent requests per engine; overrides the measured value."),
        click.option(
            "--service-time",
            "service_s",
            type=duration,
            metavar="DURATION",
            help="Time a request holds a slot; overrides the measured value.",
        ),
        click.option(
            "--arrivals", "arrivals_per_s", type=float, help="Requests per second; overrides the measured value."
        ),
        click.option("--zones", type=int, default=1, show_default=True, help="Zones to spread --engines over."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def situation(
    *,
    admin: str,
    recording: Path | None,
    pool: str,
    engines: int | None,
    slots: float | None,
    service_s: float | None,
    arrivals_per_s: float | None,
    zones: int,
) -> PoolSituation:
    """Return the chosen pool; ``PlanError`` or a click error names missing or invalid input."""
    if slots is not None and slots < 1:
        raise PlanError(f"--slots {slots:g}: must be at least 1")
    if service_s is not None and service_s <= 0:
        raise PlanError("--service-time must be above 0")
    if arrivals_per_s is not None and not 0 <= arrivals_per_s < math.inf:
        raise PlanError(f"--arrivals {arrivals_per_s:g}: must be finite and not negative")
    if arrivals_per_s is not None and arrivals_per_s > MOST_ARRIVALS_PER_S:
        raise PlanError(f"--arrivals {arrivals_per_s:g}: the limit is 1e9 requests per second")
    admin_given = "admin" in click.get_current_context().meta.get(META, {})
    if engines is not None:
        if admin_given or recording:
            raise click.UsageError("--engines plans without a server: remove --admin and --recording")
        if slots is None or service_s is None or arrivals_per_s is None:
            raise click.UsageError("--engines needs --slots, --service-time and --arrivals")
        return uniform_engines(
            engines=engines, slots=slots, service_s=service_s, arrivals_per_s=arrivals_per_s, zones=zones
        )
    if recording is not None:
        if admin_given:
            raise click.UsageError("--admin and --recording are mutually exclusive")
        found = recorded_pool(recording, pool)
    else:
        found = _served_pool(admin, pool)

    def with_given(one: EngineSlots) -> EngineSlots:
        return replace(one, slots=slots or one.slots, service_s=service_s or one.service_s)

    given = [name for name, value in (("--slots", slots), ("--service-time", service_s)) if value is not None]
    if arrivals_per_s is not None:
        given.append("--arrivals")
    return replace(
        found,
        engines=tuple(map(with_given, found.engines)),
        arrivals_per_s=found.arrivals_per_s if arrivals_per_s is None else arrivals_per_s,
        source=f"{found.source}; {', '.join(given)} from the command line" if given else found.source,
    )


def _served_pool(admin: str, pool: str) -> PoolSituation:
    found = pool_from_server(fetch(admin, POOLS).value.pools, fetch(admin, ENGINES).value.engines, pool)
    objectives = fetch(admin, OBJECTIVES).value.objectives
    if not any(found.pool in one.pools for one in objectives):
        return found
    history = fetch(admin, POOL_HISTORY, query=[("pool", found.pool)]).value
    points = next((one.points for one in history.pools if one.pool == found.pool), ())
    return with_objectives(found, objectives, points)


def with_ceiling(pool: PoolSituation, wait_s: float | None, *, none: bool) -> PoolSituation:
    """Set the admission limit: the given wait, else the measured one, else 2 s."""
    if none:
        if wait_s is not None:
            raise click.UsageError("--no-ceiling and --max-wait are mutually exclusive")
        return replace(pool, max_wait_s=None)
    if wait_s is not None:
        return replace(pool, max_wait_s=wait_s)
    return replace(pool, max_wait_s=_USUAL_WAIT_S) if pool.max_wait_s is None else pool
