"""Output of ``plan redundancy``: tables, sentences, plot."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from chaos.planning import correlated_failures
from chaos.planning.availability import HOURS_PER_MONTH
from chaos.planning.cli.plan_answer import AnswerGrid, money, percent, target
from chaos.planning.correlated_failures import FailureDomains, SampledProbability
from chaos.planning.spare_engines import SpareEngines, spares_steps
from chaos.planning.standby_region import StandbyComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelatedSpares:
    """One target with correlated failures. ``spares`` None: no number is enough."""

    allowed: float
    spares: int | None
    short: float | None
    cost_per_month: float | None
    sampled: SampledProbability | None
    zone_proof: int | None


def answer_grids(
    found: tuple[SpareEngines, ...],
    steps: tuple[SpareEngines, ...],
    together: tuple[CorrelatedSpares, ...],
    choices: tuple[StandbyComparison, ...],
    layout: FailureDomains,
) -> Iterator[AnswerGrid]:
    """Tables: spares per target, effect of each spare, correlated failures, regions."""
    yield AnswerGrid(
        title="Spares per target, independent failures",
        columns=("target", "spares", "engines", "availability", "shortage", "cost/month"),
        rows=tuple(
            (
                target(one.allowed or 0),
                str(one.spares),
                str(one.need + one.spares),
                percent(one.attained),
                f"{one.short:.3g}",
                money(one.cost_per_month),
            )
            for one in found
        ),
    )
    yield AnswerGrid(
        title="Effect of each spare",
        columns=("spares", "availability", "shortage", "cost/month"),
        rows=tuple(
            (str(one.spares), percent(one.attained), f"{one.short:.3g}", money(one.cost_per_month))
            for one in steps
        ),
    )
    if together:
        yield AnswerGrid(
            title=f"Correlated failures: {_named(layout)}",
            columns=(
                "target",
                "spares",
                "shortage",
                "sampled (95 % interval)",
                "cost/month",
                "engines to survive a zone",
            ),
            rows=tuple(
                (
                    target(one.allowed),
                    "no number" if one.spares is None else str(one.spares),
                    "-" if one.short is None else f"{one.short:.3g}",
                    "-"
                    if one.sampled is None
                    else f"{one.sampled.share:.3g} ({one.sampled.low:.2g} to {one.sampled.high:.2g})",
                    money(one.cost_per_month),
                    "-" if one.zone_proof is None else str(one.zone_proof),
                )
                for one in together
            ),
        )
    if choices:
        yield AnswerGrid(
            title="More spares in one region, or a standby region",
            columns=(
                "target",
                "spares, one region",
                "cost/month",
                "spares per region, two",
                "cost/month",
                "cheaper",
            ),
            rows=tuple(
                (
                    target(one.allowed),
                    "no number" if one.spares is None else str(one.spares),
                    money(one.cost_per_month),
                    "no number" if one.each is None else str(one.each),
                    money(one.standby_cost_per_month),
                    "standby" if one.standby_wins else "neither" if one.spares is None else "spares",
                )
                for one in choices
            ),
        )


def answer_sentences(
    found: tuple[SpareEngines, ...],
    together: tuple[CorrelatedSpares, ...],
    choices: tuple[StandbyComparison, ...],
    layout: FailureDomains,
    asked: dict[str, Any],
) -> Iterator[str]:
    """Assumptions and limits of the tables."""
    need = asked["need"]
    yield (
        f"Without spares, all {need} engines are up for {percent(1 - _short_bare(need, layout.engine_down))} "
        f"of the time (availability to the power of {need})."
    )
    if asked["cost_per_hour"] is not None:
        yield f"Cost covers the engines above the {need} needed; a month has {HOURS_PER_MONTH:g} hours."
    yield "Assumes independent failures with the same down share for each engine (binomial)."
    for one, alone in zip(together, found, strict=True) if together else ():
        if one.spares is None:
            yield (
                f"No number of spares reaches {target(one.allowed)} in this layout: everything is down at once "
                f"for {layout.floor:.3g} of the time, or it takes more than "
                f"{correlated_failures.MOST_ENGINES} engines."
            )
        elif one.spares > alone.spares:
            yield f"Correlated failures need {one.spares - alone.spares} more spares at {target(one.allowed)}."
    for choice in choices:
        yield f"{target(choice.allowed)}: {choice.verdict}."
    if choices:
        yield (
            "The cost of a standby region covers its engines and the spares of both regions. A bad model build in "
            "both regions is not modelled."
        )
    yield (
        "Spares do not help against common causes: the only zone or region, a bad build everywhere, a bad policy, "
        "the router in front."
    )


def _short_bare(need: int, down: float) -> float:
    return spares_steps(need, down, 0)[0].short


def _named(layout: FailureDomains) -> str:
    parts = []
    for count, name, down in (
        (layout.zones, "zones", layout.zone_down),
        (layout.racks, "racks per zone", layout.rack_down),
        (layout.builds, "builds", layout.build_down),
    ):
        if count > 1 or down:
            parts.append(f"{count} {name} (each down for {down:.3g})")
    return ", ".join(parts)


def answer_plot(need: int, down: float, found: tuple[SpareEngines, ...]) -> Callable[[Any], None]:
    """Return a function that plots shortage probability over spares, with the targets."""

    def draw(axes: Any) -> None:
        steps = spares_steps(need, down, max(one.spares for one in found) + 3)
        axes.semilogy([one.spares for one in steps], [max(one.short, 1e-18) for one in steps], "o-")
        for one in found:
            if one.allowed:
                axes.axhline(one.allowed, linestyle="--", color="grey")
                axes.annotate(f"target {target(one.allowed)}: {one.spares}", (one.spares, one.allowed))
        axes.set(xlabel="spares", ylabel="shortage probability", title=f"{need} needed, each down {down:.4g}")

    return draw
