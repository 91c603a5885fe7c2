"""The published table beside ours."""

from dataclasses import asdict
from typing import Any, Final

from chaos.planning import textbook as book
from chaos.planning.cli.plan_answer import AnswerGrid, PlanAnswer, percent
from chaos.planning.spare_engines import shortage_probability

_RUNS: Final = 100


def textbook(*, seed: int) -> PlanAnswer:
    """Published, run again, exact and scattered, for 0 to 4 spares; and 0.99 to the power of 8."""
    failing = book.Failing()
    rows = []
    for spares, printed in enumerate(book.PUBLISHED):
        rows.append(
            {
                "spares": spares,
                "published": printed.attained,
                "run_again": book.run(book.PUBLISHED_NEED, spares, failing).attained,
                "exact": book.exact(book.PUBLISHED_NEED, spares, failing),
                "runs": asdict(book.runs(book.PUBLISHED_NEED, spares, failing, count=_RUNS, seed=seed)),
            }
        )
    fragile = book.Failing(p_fail=0.01)
    more = book.fewest_spares(book.PUBLISHED_NEED, fragile, 1e-3)
    power = 1 - shortage_probability(8, 0, 0.01)
    return PlanAnswer(
        question="A textbook's fleet that needs 8 engines",
        data={
            "need": book.PUBLISHED_NEED,
            "failing": asdict(failing),
            "engine_down": failing.down,
            "rows": rows,
            "p_fail_0.01": {
                "spares": more,
                "attained": book.exact(book.PUBLISHED_NEED, more, fragile),
                "one_fewer": book.exact(book.PUBLISHED_NEED, more - 1, fragile),
            },
            "0.99^8": power,
        },
        grids=(
            AnswerGrid(
                title="Share of ticks with at least 8 healthy engines",
                columns=(
                    "spares",
                    "published",
                    "run again, seed 0",
                    "exact",
                    f"{_RUNS} runs: mean ± deviation of one",
                ),
                rows=tuple(_row(one) for one in rows),
            ),
        ),
        said=(
            "Each tick an engine goes bad with 0.002, is found out 3 ticks later, and then comes back with 0.05.",
            f"So it is up 500 ticks and down 3 + 20 on the mean: down {failing.down:.4f} of the time, and the "
            "exact column is binomial with that.",
            "The published numbers are one run of 20 000 ticks each. The same run, written anew and drawing the "
            "same random numbers, gives them to the digit; with another seed it lies where the last column says.",
            f"With p_fail 0.01 the smallest number of spares for 99.9 % is {more} "
            f"({percent(book.exact(book.PUBLISHED_NEED, more, fragile))}; one fewer gives "
            f"{percent(book.exact(book.PUBLISHED_NEED, more - 1, fragile))}).",
            f"0.99^8 = {power:.4f}, published as 0.923.",
        ),
        yes=True,
        draw=lambda axes: _draw(axes, rows),
    )


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"N + {one['spares']}",
        f"{100 * one['published']:.3f} %",
        f"{100 * one['run_again']:.3f} %",
        f"{100 * one['exact']:.3f} %",
        f"{100 * one['runs']['mean']:.3f} ± {100 * one['runs']['deviation']:.3f} %",
    )


def _draw(axes: Any, rows: list[dict[str, Any]]) -> None:
    spares = [one["spares"] for one in rows]
    axes.errorbar(
        spares,
        [100 * one["runs"]["mean"] for one in rows],
        yerr=[200 * one["runs"]["deviation"] for one in rows],
        fmt="none",
        capsize=5,
        label="two deviations of one run",
    )
    axes.plot(spares, [100 * one["exact"] for one in rows], "o-", label="exact")
    axes.plot(spares, [100 * one["published"] for one in rows], "x", markersize=9, label="published")
    axes.set(xlabel="spares", ylabel="% of ticks with 8 healthy engines", title="Eight needed")
    axes.legend()
