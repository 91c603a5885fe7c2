"""``switchgear plan capacity``: how full, how far from too full, and what is left when a zone goes."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from chaos.planning.availability import unavailability
from chaos.planning.cli import plan_options
from chaos.planning.cli.plan_answer import (
    AnswerGrid,
    PlanAnswer,
    money,
    number,
    percent,
    plot_path,
    print_answer,
    seconds,
    target,
)
from chaos.planning.fleet_capacity import FleetCapacity, Headroom, WaitPromise, fleet_capacity, spares_per_nine
from chaos.planning.pool_situation import PoolSituation
from chaos.planning.queueing import SlotQueue, queue_stats
from chaos.planning.spare_engines import SpareEngines

_NINES: Final = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@click.command(name="capacity")
@plan_options.pool_options
@plan_options.promise_options
@click.option("--availability", help="Share of time one engine is up: what each nine costs.")
@click.option("--cost-per-hour", type=float, help="Price of one engine.")
@click.option("--survive-zone", is_flag=True, help="Exit with 0 only where any one zone may go.")
@plan_options.json_option
@plan_options.plot_option
def command(
    *,
    wait_s: float,
    late: float,
    availability: str | None,
    cost_per_hour: float | None,
    survive_zone: bool,
    as_json: bool,
    plot: Path | None,
    **asked: Any,
) -> int:
    """How full the engines of a pool are, and what they can take with at most --late waiting over --max-wait.

    Numbers come from a running server, from a recording, or from --engines with --slots, --service-time and
    --arrivals; the last three also replace what was measured.

    Exit code: 0 when the promise holds, 1 when not, 2 for numbers that cannot be or cannot be had.
    """
    plot, promise = plot_path(plot), plan_options.promise(wait_s, late)
    pool = plan_options.situation(**asked)
    found = fleet_capacity(pool, promise)
    bought = (
        spares_per_nine(found.need, unavailability(availability), _NINES, cost_per_hour=cost_per_hour)
        if availability is not None
        else ()
    )
    answer = PlanAnswer(
        question=f"Capacity of {pool.pool or 'a fleet'}",
        data={
            "pool": pool.pool,
            "source": pool.source,
            "promise": asdict(promise),
            **asdict(found),
            "kept": found.whole.kept,
            "nines": [{**asdict(one), "attained": one.attained, "more": more} for one, more in bought],
        },
        grids=tuple(_grids(found, bought, promise)),
        said=tuple(_said(pool, found)),
        yes=found.whole.kept and (not survive_zone or all(one.kept for one in found.without_zone)),
        draw=lambda axes: _draw(axes, pool, found, promise),
    )
    return print_answer(answer, as_json=as_json, plot=plot)


def _grids(
    found: FleetCapacity, bought: tuple[tuple[SpareEngines, int], ...], promise: WaitPromise
) -> Iterator[AnswerGrid]:
    yield AnswerGrid(
        title=f"At most {percent(promise.late)} waiting longer than {seconds(promise.wait_s)}",
        columns=(
            "gone",
            "engines",
            "slots",
            "asked/can",
            "in flight",
            "wait at all",
            "too late",
            "mean wait",
            "takes",
            "head-room",
        ),
        rows=tuple(_room(one) for one in (found.whole, *found.without_zone)),
    )
    if bought:
        yield AnswerGrid(
            title=f"What each nine costs, above the {found.need} engines needed",
            columns=("target", "spares", "more than before", "enough are up", "cost a month"),
            rows=tuple(
                (
                    target(one.allowed or 0),
                    str(one.spares),
                    f"+{more}",
                    percent(one.attained),
                    money(one.cost_per_month),
                )
                for one, more in bought
            ),
        )


def _room(one: Headroom) -> tuple[str, ...]:
    now = one.now
    return (
        one.name,
        str(now.engines),
        number(now.slots),
        percent(now.pressure) if now.pressure < 1 else f"{100 * now.pressure:.3g} %",
        number(now.in_flight),
        percent(now.waits),
        percent(now.late),
        seconds(now.wait_mean_s),
        f"{number(one.most_arrivals_per_s)}/s",
        f"{100 * one.head_room:+.3g} %",
    )


def _said(pool: PoolSituation, found: FleetCapacity) -> Iterator[str]:
    yield f"Numbers from {pool.source}."
    yield (
        f"Little's law: {number(pool.arrivals_per_s)} a second, {seconds(pool.service_s)} each, keep "
        f"{number(pool.arrivals_per_s * pool.service_s)} of {number(pool.slots)} slots busy."
    )
    yield f"The promise needs {found.need} engines of {number(found.each_slots)} slots; there are {len(pool.up)}."
    if found.need_with_zone_lost is not None:
        zones = len(pool.zones)
        yield f"With any one of {zones} zones gone, it needs {found.need_with_zone_lost} of them, dealt evenly."
    out = len(pool.engines) - len(pool.up)
    if out:
        yield f"{out} engines are out and do not count."
    yield (
        "Waits are of M/M/c: Poisson arrivals, exponential answer times, one common queue for all slots; nothing "
        "is refused in it."
    )


def _draw(axes: Any, pool: PoolSituation, found: FleetCapacity, promise: WaitPromise) -> None:
    queue = pool.queue()
    if queue is None:
        return
    top = max(queue.servers / queue.service_s, pool.arrivals_per_s) * 1.02
    arrivals = np.linspace(0.5 * top, top, 120)
    for name, servers in ((f"all {len(pool.up)} engines", queue.servers), *_left(found)):
        if servers < 1:
            continue
        late = [
            queue_stats(
                SlotQueue(servers=servers, service_s=queue.service_s, arrivals_per_s=float(one)),
                patience_s=promise.wait_s,
            ).late
            for one in arrivals
        ]
        axes.plot(arrivals, [100 * one for one in late], label=name)
    axes.axvline(pool.arrivals_per_s, color="black", linestyle=":", label="now")
    axes.axhline(100 * promise.late, color="grey", linestyle="--", label="promise")
    axes.set(xlabel="arrivals per second", ylabel=f"% waiting over {seconds(promise.wait_s)}", ylim=(0, 100))
    axes.legend()


def _left(found: FleetCapacity) -> tuple[tuple[str, int], ...]:
    """The worst zone's loss only: the others lie between."""
    if not found.without_zone:
        return ()
    worst = min(found.without_zone, key=lambda one: one.most_arrivals_per_s)
    return ((f"without {worst.name}", int(worst.now.slots)),)
