"""``switchgear plan redundancy``: spares, their cost, and their limits."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from chaos.planning import correlated_failures, standby_region
from chaos.planning.availability import HOURS_PER_MONTH, down_share, unavailability
from chaos.planning.cli.plan_answer import PlanAnswer, plot_path, print_answer
from chaos.planning.cli.plan_options import duration, plot_option, targets
from chaos.planning.cli.redundancy_answer import CorrelatedSpares, answer_grids, answer_plot, answer_sentences
from chaos.planning.correlated_failures import FailureDomains
from chaos.planning.error import PlanError
from chaos.planning.spare_engines import monthly_cost, spares_for, spares_steps
from chaos.planning.standby_region import RegionOutage, StandbyComparison
from command_line.output_format import OutputForm, output_option

_SHOWN_BEYOND: Final = 1


@click.command(name="redundancy")
@click.option("--need", type=int, help="Engines needed to serve the peak.")
@click.option("--availability", help="Share of time one engine is up, e.g. 0.995 or 99.5%.")
@click.option(
    "--crashes-per-day",
    type=float,
    help="Crashes of one engine per day; with --repair, instead of --availability.",
)
@click.option("--repair", "repair_s", type=duration, metavar="DURATION", help="Time to repair one engine.")
@click.option(
    "--detection",
    "detection_s",
    type=duration,
    metavar="DURATION",
    default="0s",
    help="Time to detect a crash; adds to --repair.",
)
@click.option("--target", default="0.999", show_default=True, help="Availability targets, comma-separated.")
@click.option("--cost-per-hour", type=float, help="Price of one engine per hour.")
@click.option("--zones", type=int, default=1, show_default=True, help="Zones to spread the engines over.")
@click.option("--zone-down", default="0", help="Share of time a zone as a whole is down.")
@click.option("--racks", type=int, default=1, show_default=True, help="Racks in each zone.")
@click.option("--rack-down", default="0", help="Share of time a rack as a whole is down.")
@click.option("--builds", type=int, default=1, show_default=True, help="Model builds in use at the same time.")
@click.option("--build-down", default="0", help="Share of time a build is bad on all its engines.")
@click.option("--samples", type=int, help="Also compute by Monte Carlo, with this number of samples.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the samples.")
@click.option(
    "--region-down", help="Share of time a region as a whole is down; adds a comparison with a standby region."
)
@click.option(
    "--region-repair",
    "region_repair_s",
    type=duration,
    metavar="DURATION",
    default="4h",
    show_default=True,
    help="Duration of one region outage.",
)
@click.option(
    "--failover",
    "failover_s",
    type=duration,
    metavar="DURATION",
    default="60s",
    show_default=True,
    help="Duration of one failover.",
)
@output_option()
@plot_option
def command(*, output: OutputForm, plot: Path | None, **asked: Any) -> int:
    """Compute the fewest spares that keep enough engines up with the target probability.

    Write shares as 0.01 or 1%. Independent failures (binomial), zones and racks are exact; more than six failing
    builds need --samples.

    Exit code: 0 if every target can be met, 1 if not, 2 for invalid numbers.
    """
    plot = plot_path(plot)
    if asked["need"] is None:
        raise click.UsageError("missing --need: the number of engines needed")
    return print_answer(_answer(asked), output=output, plot=plot)


def _answer(asked: dict[str, Any]) -> PlanAnswer:
    need, down = asked["need"], _down(asked)
    allowed = targets(asked["target"])
    found = spares_for(need, down, allowed, cost_per_hour=asked["cost_per_hour"])
    steps = spares_steps(
        need, down, max(one.spares for one in found) + _SHOWN_BEYOND, cost_per_hour=asked["cost_per_hour"]
    )
    layout = FailureDomains(
        engines=need,
        zones=asked["zones"],
        racks=asked["racks"],
        builds=asked["builds"],
        engine_down=down,
        zone_down=1 - unavailability(asked["zone_down"]),
        rack_down=1 - unavailability(asked["rack_down"]),
        build_down=1 - unavailability(asked["build_down"]),
    )
    together = _all_together(layout, need, allowed, asked) if _places(layout) else ()
    choices = _choices(need, down, allowed, asked)
    missed = any(one.spares is None for one in together) or any(
        one.spares is None and one.each is None for one in choices
    )
    return PlanAnswer(
        question=f"{need} engines needed, each down {down:.4g} of the time",
        data={
            "need": need,
            "engine_down": down,
            "hours_per_month": HOURS_PER_MONTH,
            "targets": [{**asdict(one), "attained": one.attained} for one in found],
            "ladder": [{**asdict(one), "attained": one.attained} for one in steps],
            "together": [asdict(one) for one in together],
            "layout": asdict(layout),
            "regions": [asdict(one) for one in choices],
        },
        grids=tuple(answer_grids(found, steps, together, choices, layout)),
        notes=tuple(answer_sentences(found, together, choices, layout, asked)),
        yes=not missed,
        draw=answer_plot(need, down, found),
    )


def _down(asked: dict[str, Any]) -> float:
    rates = asked["crashes_per_day"] is not None or asked["repair_s"] is not None
    if asked["availability"] is not None:
        if rates:
            raise click.UsageError("--availability excludes --crashes-per-day and --repair")
        return unavailability(asked["availability"])
    if asked["crashes_per_day"] is None or asked["repair_s"] is None:
        raise click.UsageError("missing --availability, or --crashes-per-day and --repair")
    return down_share(
        crashes_per_day=asked["crashes_per_day"], repair_s=asked["repair_s"], detection_s=asked["detection_s"]
    )


def _places(layout: FailureDomains) -> bool:
    # Counts below one pass too; the check below refuses them.
    several = (layout.zones, layout.racks, layout.builds) != (1, 1, 1)
    return several or max(layout.zone_down, layout.rack_down, layout.build_down) > 0


def _all_together(
    layout: FailureDomains, need: int, allowed: tuple[float, ...], asked: dict[str, Any]
) -> tuple[CorrelatedSpares, ...]:
    correlated_failures.checked_domains(layout)
    if not correlated_failures.is_exact(layout) and asked["samples"] is None:
        raise PlanError(f"{layout.builds} failing builds: add --samples, e.g. --samples 200000")
    return tuple(_together(layout, need, one, asked) for one in allowed)


def _together(layout: FailureDomains, need: int, allowed: float, asked: dict[str, Any]) -> CorrelatedSpares:
    exact = correlated_failures.is_exact(layout)
    spares = (
        correlated_failures.fewest_spares(layout, need, allowed)
        if exact
        else correlated_failures.fewest_sampled_spares(
            layout, need, allowed, samples=asked["samples"], seed=asked["seed"]
        )
    )
    whole = correlated_failures.resized(layout, need + (spares or 0))
    sampled = (
        correlated_failures.sampled_shortage(whole, need, samples=asked["samples"], seed=asked["seed"])
        if asked["samples"]
        else None
    )
    return CorrelatedSpares(
        allowed=allowed,
        spares=spares,
        short=correlated_failures.shortage_probability(whole, need) if exact and spares is not None else None,
        cost_per_month=None if spares is None else monthly_cost(asked["cost_per_hour"], spares),
        sampled=sampled if spares is not None else None,
        zone_proof=correlated_failures.survive_one_zone(need, layout.zones, layout.engine_down, allowed)
        if layout.zones > 1
        else None,
    )


def _choices(
    need: int, down: float, allowed: tuple[float, ...], asked: dict[str, Any]
) -> tuple[StandbyComparison, ...]:
    if asked["region_down"] is None:
        return ()
    regions = RegionOutage(
        region_down=1 - unavailability(asked["region_down"]),
        region_repair_s=asked["region_repair_s"],
        failover_s=asked["failover_s"],
    )
    return tuple(
        standby_region.standby_comparison(need, down, one, regions, cost_per_hour=asked["cost_per_hour"])
        for one in allowed
    )
