"""What several questions are asked with: kinds of values, and where the numbers of a pool are from."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from chaos.planning.availability import unavailability
from chaos.planning.error import PlanError
from chaos.planning.fleet_capacity import WaitPromise
from chaos.planning.pool_situation import EngineSlots, PoolSituation, pool_from_server, uniform_engines
from chaos.planning.recorded_pool import recorded_pool
from policies.quantity import parse_duration
from xds_server.admin_api.endpoints import ENGINES, POOLS
from xds_server.cli.admin_client import fetch

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULT_ADMIN: Final = "http://127.0.0.1:18001"
MOST_ARRIVALS_PER_S: Final = 1e9
"""Far above any fleet; where floats still tell one request from none."""
_USUAL_WAIT_S: Final = 2.0  # limits.maxWait where no policy sets it


def duration(value: str) -> float:
    """Seconds of a duration with its unit, as in the policies, or of days."""
    try:
        if value.endswith("d") and value[:-1].replace(".", "", 1).isdigit():
            return float(value[:-1]) * 86_400
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}; days are written such as 2d") from error


def share(value: str) -> float:
    """A share as ``0.01`` or ``1%``; it may be negative or above one, where that means something."""
    text = value.strip()
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise click.BadParameter(f"{value!r} is not a share: write it such as 0.01 or 1%")
    return found


json_option = click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object on stdout.")
plot_option = click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw the answer: FILE.png, FILE.svg, or FILE.html with tables and picture.",
)


def targets(text: str) -> tuple[float, ...]:
    """What each of the comma-separated targets allows to be missing; ``PlanError`` for one that is none."""
    parts = [one for one in text.split(",") if one.strip()]
    if not parts:
        raise PlanError("--target names no probability")
    return tuple(unavailability(one) for one in parts)


def promise_options(function: F) -> F:
    """With the options of the promise."""
    late = click.option(
        "--late",
        type=share,
        metavar="SHARE",
        default="1%",
        show_default=True,
        help="Share of requests that may wait longer.",
    )
    wait = click.option(
        "--max-wait",
        "wait_s",
        type=duration,
        metavar="DURATION",
        default="2s",
        show_default=True,
        help="How long a request may wait for a slot.",
    )
    return wait(late(function))


def promise(wait_s: float, late: float) -> WaitPromise:
    """The promise, judged."""
    if not 0 < late < 1:
        raise PlanError(f"--late {late:g}: it must lie between 0 and 1 (0 % and 100 %)")
    return WaitPromise(wait_s=wait_s, late=late)


def pool_options(function: F) -> F:
    """With the options that say which pool, and where its numbers are from."""
    options = (
        click.option("--admin", metavar="URL", help=f"Ask the server there. [default: {_DEFAULT_ADMIN}]"),
        click.option(
            "--recording",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A recording of `switchgear serve --record` instead, at its busiest.",
        ),
        click.option("--pool", default="", metavar="NAME", help="Which pool of it, where there are several."),
        click.option("--engines", type=int, help="So many engines that are all alike, without any server."),
        click.option("--slots", type=float, help="Calls at once per engine; replaces what was measured."),
        click.option(
            "--service-time",
            "service_s",
            type=duration,
            metavar="DURATION",
            help="Time a call holds a slot; likewise.",
        ),
        click.option("--arrivals", "arrivals_per_s", type=float, help="Requests per second; likewise."),
        click.option("--zones", type=int, default=1, show_default=True, help="Zones that --engines stand in."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def situation(
    *,
    admin: str | None,
    recording: Path | None,
    pool: str,
    engines: int | None,
    slots: float | None,
    service_s: float | None,
    arrivals_per_s: float | None,
    zones: int,
) -> PoolSituation:
    """The pool that is meant; ``PlanError`` or a click error says what is missing or wrong."""
    if slots is not None and slots < 1:
        raise PlanError(f"--slots {slots:g}: an engine has at least one")
    if service_s is not None and service_s <= 0:
        raise PlanError("--service-time must be more than nothing")
    if arrivals_per_s is not None and not 0 <= arrivals_per_s < math.inf:
        raise PlanError(f"--arrivals {arrivals_per_s:g}: requests per second are not negative, and finite")
    if arrivals_per_s is not None and arrivals_per_s > MOST_ARRIVALS_PER_S:
        raise PlanError(f"--arrivals {arrivals_per_s:g}: more than a billion a second cannot be planned here")
    if engines is not None:
        if admin or recording:
            raise click.UsageError("--engines is for a fleet that is not asked: leave --admin and --recording out")
        if slots is None or service_s is None or arrivals_per_s is None:
            raise click.UsageError("--engines needs --slots, --service-time and --arrivals beside it")
        return uniform_engines(
            engines=engines, slots=slots, service_s=service_s, arrivals_per_s=arrivals_per_s, zones=zones
        )
    if recording is not None:
        if admin:
            raise click.UsageError("--admin and --recording are two places to look: give one")
        found = recorded_pool(recording, pool)
    else:
        url = admin or _DEFAULT_ADMIN
        found = pool_from_server(fetch(url, POOLS).value.pools, fetch(url, ENGINES).value.engines, pool)

    def with_given(one: EngineSlots) -> EngineSlots:
        return replace(one, slots=slots or one.slots, service_s=service_s or one.service_s)

    given = [name for name, value in (("--slots", slots), ("--service-time", service_s)) if value is not None]
    if arrivals_per_s is not None:
        given.append("--arrivals")
    return replace(
        found,
        engines=tuple(map(with_given, found.engines)),
        arrivals_per_s=found.arrivals_per_s if arrivals_per_s is None else arrivals_per_s,
        source=f"{found.source}; {', '.join(given)} as given" if given else found.source,
    )


def with_ceiling(pool: PoolSituation, wait_s: float | None, *, none: bool) -> PoolSituation:
    """The pool with the ceiling asked for; else as measured, or two seconds."""
    if none:
        if wait_s is not None:
            raise click.UsageError("--no-ceiling and --max-wait contradict each other")
        return replace(pool, max_wait_s=None)
    if wait_s is not None:
        return replace(pool, max_wait_s=wait_s)
    return replace(pool, max_wait_s=_USUAL_WAIT_S) if pool.max_wait_s is None else pool
