"""The claims one by one: spares, wasted calls, retries, hedging.

Where the source names a seed, its run is made again and must come out the same; what other seeds and the long run
give stands beside it. Where it tells a story without its numbers, ours are said.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Final

from benchmarks.claims.live_results import RetryStormResult
from chaos.planning import retry_amplification as amplification
from chaos.planning import retry_storm_model, spare_engines, textbook
from chaos.planning.availability import HOURS_PER_MONTH
from chaos.planning.retry_storm_model import BREAKER, HEDGED, HEDGED_IN_SPARE, NAIVE, ModelOutcome, run_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Short texts for a table: ``published``, ``simulated``, and ``live``, empty where nothing was run.

    ``holds`` says whether the model bears the claim out; ``plainly`` what to make of it, and what differs.
    """

    name: str
    published: str
    simulated: str
    live: str
    holds: bool
    plainly: str


OTHER_SEEDS: Final = (2, 3, 4)


def claims(live: RetryStormResult | None) -> Iterator[Claim]:
    """Every claim; each takes a second or a few."""
    yield from table_of_spares()
    yield from spare_capacity()
    naive, breaker = run_model(NAIVE), run_model(BREAKER)
    yield wasted_calls(
        naive, breaker, [(run_model(NAIVE, seed=one), run_model(BREAKER, seed=one)) for one in OTHER_SEEDS], live
    )
    yield retry_amplification(live)
    yield from hedging(naive, run_model(HEDGED), run_model(HEDGED_IN_SPARE))


def table_of_spares() -> Iterator[Claim]:
    """What 0 to 4 spares give."""
    failing, need = textbook.Failing(), textbook.PUBLISHED_NEED
    for number, printed in enumerate(textbook.PUBLISHED):
        again = textbook.run(need, number, failing)
        exact = textbook.exact(need, number, failing)
        yield Claim(
            name=f"ticks with 8 healthy engines of 8 + {number}",
            published=f"{100 * printed.attained:.3f} %",
            simulated=f"{100 * again.attained:.3f} % (long run {100 * exact:.3f} %)",
            live="",
            holds=again.attained == printed.attained,
            plainly="the same seed gives the same run; the long run differs by what chance does in one run",
        )


def spare_capacity() -> Iterator[Claim]:
    """The power that explains the table, and the two exercises that go with it."""
    failing, need = textbook.Failing(), textbook.PUBLISHED_NEED
    bare = 1 - spare_engines.shortage_probability(8, 0, 0.01)
    yield Claim(
        name="0.99^8",
        published="0.923",
        simulated=f"{bare:.4f}",
        live="",
        holds=round(bare, 3) == 0.923,
        plainly="exact",
    )
    fragile = replace(failing, p_fail=0.01)
    most = textbook.fewest_spares(need, fragile, 1e-3)
    seen = textbook.runs(need, most, fragile, count=50)
    yield Claim(
        name="p_fail 0.01: spares for 99.9 %",
        published="left to the reader",
        simulated=f"{most} (long run {100 * textbook.exact(need, most, fragile):.3f} %)",
        live="",
        holds=textbook.exact(need, most - 1, fragile) < 0.999 <= textbook.exact(need, most, fragile),
        plainly=f"by the binomial; single runs scatter by {100 * seen.deviation:.2f} %, "
        f"from {100 * seen.least:.2f} to {100 * seen.most:.2f} %, so one run cannot tell",
    )
    three, four = spare_engines.spares_for(20, 0.005, (1e-3, 1e-4), cost_per_hour=2.0)
    yield Claim(
        name="20 engines at 0.995: 3 and 4 nines",
        published="left to the reader",
        simulated=f"{three.spares} and {four.spares} spares, ${three.cost_per_month:,.0f} and "
        f"${four.cost_per_month:,.0f} a month",
        live="",
        holds=three.kept and four.kept,
        plainly=f"exact; a month has {HOURS_PER_MONTH:g} hours; engines that fail together need more",
    )


def wasted_calls(
    naive: ModelOutcome,
    breaker: ModelOutcome,
    others: Sequence[tuple[ModelOutcome, ModelOutcome]],
    live: RetryStormResult | None,
) -> Claim:
    """Half the fleet sick: as much goodput with a breaker, and an eleventh of the wasted calls."""
    said = retry_storm_model.PUBLISHED
    same = all(
        one.whole.wasted == said[one.policy.name].wasted
        and round(one.whole.goodput, 3) == said[one.policy.name].goodput
        for one in (naive, breaker)
    )
    ratios = [one.whole.wasted / other.whole.wasted for one, other in others]
    goodputs = [one.whole.goodput - other.whole.goodput for one, other in others]
    return Claim(
        name="half sick: naive retries and a breaker",
        published="84.9 %, 58 319 wasted; 84.4 %, 5 094 wasted: 11 times at equal goodput",
        simulated=f"{_both(naive)}; {_both(breaker)}: {naive.whole.wasted / breaker.whole.wasted:.1f} times",
        live=_live_waste(live),
        holds=same,
        plainly=(
            f"the same seed gives the same runs; other seeds give {mean(ratios):.1f} ± {stdev(ratios):.1f} "
            f"times at {100 * mean(goodputs):.1f} points less goodput. A failed call takes one tick here; live, "
            "the work is done before it fails, waste is engine time, and requests have a deadline"
        ),
    )


def retry_amplification(live: RetryStormResult | None) -> Claim:
    """Five retries behind a short limit turn a blip into four times the load."""
    storm, calm = (
        amplification.incident_course(amplification.FIVE_RETRIES),
        amplification.incident_course(amplification.ONE_RETRY),
    )
    roomy = amplification.incident_course(
        amplification.FIVE_RETRIES, amplification.SlowdownIncident(load=0.7, after_s=20)
    )
    return Claim(
        name="15 % slow for 90 s: five retries, short limit",
        published="load roughly fourfold, all engines saturated",
        simulated=(
            f"{storm.slow_times:.1f} times the calls while slow, {storm.worst_times:.1f} at worst, goodput "
            f"{100 * storm.slow_goodput:.0f} %; one retry, long limit: {calm.slow_times:.2f} times"
        ),
        live=""
        if live is None
        else f"{live.naive.calls_per_request:.1f} calls a request with 5 naive retries, "
        f"{live.switchgear.calls_per_request:.2f} under Switchgear ({live.title})",
        holds=3 <= storm.slow_times <= 5 and calm.slow_times < 1.1,
        plainly=(
            "the source names no load: ours is 85 % of the slots, and goodput stays at "
            f"{100 * storm.after_goodput:.0f} % after the blip is over. At 70 % it is "
            f"{roomy.slow_times:.2f} times and nothing breaks, at 80 % luck decides. Four calls of one need "
            "83 % of all calls to fail"
        ),
    )


def hedging(naive: ModelOutcome, hedged: ModelOutcome, in_spare: ModelOutcome) -> Iterator[Claim]:
    """Second copies of what waits: good with spare slots, bad without."""
    before, then = naive.phases["before"], hedged.phases["before"]
    yield Claim(
        name="hedging with spare slots",
        published="helps the tail",
        simulated=f"late requests {1e6 * before.late:.0f} -> {1e6 * then.late:.0f} in a million, wasted calls "
        f"{before.wasted:,} -> {then.wasted:,}",
        live="",
        holds=then.late < before.late and then.goodput >= before.goodput - 0.001,
        plainly="late: answered more than one tick after it came. The price is about one call more per failed one",
    )
    during, hurt = naive.phases["during"], hedged.phases["during"]
    yield Claim(
        name="hedging in overload",
        published="hurts",
        simulated=f"goodput {100 * during.goodput:.1f} % -> {100 * hurt.goodput:.1f} %, wasted calls "
        f"{during.wasted:,} -> {hurt.wasted:,}",
        live="",
        holds=hurt.goodput < during.goodput and hurt.wasted > during.wasted,
        plainly=(
            f"and it does not end with the fault: {100 * hedged.phases['after'].goodput:.0f} % afterwards, "
            "because what waits is sent twice. Hedging only into spare slots, behind a breaker, keeps "
            f"{100 * in_spare.phases['during'].goodput:.1f} % and {100 * in_spare.phases['after'].goodput:.1f} %"
        ),
    )


def _both(one: ModelOutcome) -> str:
    return f"{100 * one.whole.goodput:.1f} %, {f'{one.whole.wasted:,}'.replace(',', ' ')} wasted"


def _live_waste(live: RetryStormResult | None) -> str:
    if live is None:
        return ""
    return (
        f"{live.title}, {live.load_percent:g} % load: naive {live.naive.goodput_percent:.0f} %, "
        f"{live.naive.wasted_s:.0f} engine-seconds wasted; Switchgear {live.switchgear.goodput_percent:.0f} %, "
        f"{live.switchgear.wasted_s:.0f} s: {live.wasted_times:.0f} times"
    )
