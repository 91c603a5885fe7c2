"""``switchgear plan growth``: when capacity runs out, and when to order."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from chaos.planning.cli import plan_options
from chaos.planning.cli.plan_answer import (
    AnswerGrid,
    PlanAnswer,
    number,
    percent,
    plot_path,
    print_answer,
    seconds,
)
from chaos.planning.demand_growth import GrowthProjection, growth_projection
from chaos.planning.pool_situation import PoolSituation
from command_line.output_format import OutputForm, output_option


@click.command(name="growth")
@plan_options.pool_options
@plan_options.promise_options
@click.option(
    "--growth",
    type=plan_options.share,
    metavar="SHARE",
    required=True,
    help="Monthly growth of the arrivals, e.g. 5%.",
)
@click.option(
    "--lead-months", type=float, default=0.0, show_default=True, help="Lead time from order to use, in months."
)
@click.option("--months", type=int, default=12, show_default=True, help="Months to project.")
@output_option()
@plan_options.plot_option
def command(
    *,
    wait_s: float,
    late: float,
    growth: float,
    lead_months: float,
    months: int,
    output: OutputForm,
    plot: Path | None,
    **asked: Any,
) -> int:
    """Project when arrivals that grow by --growth a month exceed capacity (see `plan capacity`).

    Exit code: 0 if there is time to order, 1 if the lead time is too long, 2 for invalid or missing numbers.
    """
    plot, promise = plot_path(plot), plan_options.promise(wait_s, late)
    pool = plan_options.situation(**asked)
    found = growth_projection(pool, promise, growth=growth, lead_months=lead_months, months=months)
    answer = PlanAnswer(
        question=f"Growth of {pool.pool or 'a fleet'} by {100 * growth:.4g} % a month",
        data={
            "pool": pool.pool,
            "source": pool.source,
            "growth_per_month": growth,
            "lead_months": lead_months,
            "promise": asdict(promise),
            **asdict(found),
        },
        grids=(
            AnswerGrid(
                title=f"At most {percent(promise.late)} waiting longer than {seconds(promise.wait_s)}",
                columns=("month", "arrivals/s", "demand", f"engines needed (of {found.engines})"),
                rows=tuple(
                    (
                        str(one.month),
                        number(one.arrivals_per_s),
                        f"{100 * one.pressure:.1f} %",
                        str(one.engines_needed),
                    )
                    for one in found.months
                ),
            ),
        ),
        notes=tuple(_notes(pool, found, lead_months)),
        yes=found.order_by is None or found.order_by >= 0,
        draw=lambda axes: _draw(axes, found),
    )
    return print_answer(answer, output=output, plot=plot)


def _notes(pool: PoolSituation, found: GrowthProjection, lead_months: float) -> Iterator[str]:
    yield f"Numbers from {pool.source}."
    yield f"Capacity is {number(found.most_arrivals_per_s)} requests/s; exceeded {_when(found.runs_out)}."
    if len(pool.zones) > 1:
        yield f"Without the largest zone: exceeded {_when(found.runs_out_without_zone)}."
    if found.order_by is None:
        yield "No order needed."
    elif found.order_by < 0:
        yield f"Ordering today is {-found.order_by:.1f} months late (lead time {lead_months:g} months)."
    else:
        yield f"Order within {found.order_by:.1f} months."
    yield "Growth is compound; the mix of requests stays the same. Waits follow M/M/c, as in `plan capacity`."


def _when(months: float | None) -> str:
    if months is None:
        return "never"
    return "already" if months == 0 else f"in {months:.1f} months"


def _draw(axes: Any, found: GrowthProjection) -> None:
    months = [one.month for one in found.months]
    axes.plot(months, [one.arrivals_per_s for one in found.months], "o-", label="arrivals")
    axes.axhline(found.most_arrivals_per_s, color="grey", linestyle="--", label="capacity")
    if found.order_by is not None and 0 <= found.order_by <= months[-1]:
        axes.axvline(found.order_by, color="black", linestyle=":", label="order by")
    axes.set(xlabel="months from now", ylabel="requests per second", ylim=(0, None))
    axes.legend()
