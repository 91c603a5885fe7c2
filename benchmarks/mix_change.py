"""Whether the promised wait holds when long requests become common: simulated, first tokens by second of arrival.

Four engines of eight slots, two Envoys, streams only. At first one request in twenty is long, from 14 s on 30
of 100 are, which is twice what the engines can do. The wait that the admission limit allows is 2 s; a caller
that waits longer than 2.6 s for its first token is late.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.harness import ResultColumn, option_parser, percentile, publish, result_table
from benchmarks.testbed import policy_text
from chaos.scenario.resolve_experiment import resolve_experiment
from chaos.scenario.scenario_model import Scenario
from chaos.simulator.simulation import simulate
from chaos.testbed.subjects import PolicySubject
from policies.load import load_contents

CHANGE_S: Final = 14
END_S: Final = 36
LATE_S: Final = 2.6
"""The allowed wait, the time to a first event of eight tokens, and a quarter for chance."""

RATES: Final = {6: 75.0, 20: 36.0}
"""Requests a second after the change, by how many times longer the long ones are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRow:
    """Streams that arrived after the change: of ``served``, ``late`` ones, and their seconds beyond in sum."""

    times: int
    seed: int
    served: int
    p50_s: float
    p99_s: float
    late: int
    late_s: float
    longest_first_s: float
    longest_later_s: float


def _subject() -> PolicySubject:
    text = policy_text(
        {
            "EnginePool": {
                "model": "lab",
                "serviceTime": "500ms",
                "longestServiceTime": "720ms",
                "endpoints": [{"address": "10.0.0.1", "port": 80}],
            },
            "ModelRoute": {"listener": {"port": 8080}, "pools": [{"pool": "chat"}]},
        },
        "chat",
    )
    return PolicySubject(name="switchgear", policies=load_contents({Path("policies.yaml"): text.encode()}))


def measure(times: int, seed: int) -> MixRow:
    """One simulated run."""
    spec = {
        "title": "long requests become common",
        "incident": "none",
        "topology": {"engines": [{"count": 4, "slots": 8}], "proxies": [{"count": 2}]},
        "load": {
            "perSecond": RATES[times],
            "streamingPercent": 100,
            "deadline": "30s",
            "callers": [
                {"name": "short", "demand": 70},
                {"name": "long", "demand": 3.7, "timesTokens": times},
                {"name": "more", "demand": 26.3, "timesTokens": times, "begins": f"{CHANGE_S}s"},
            ],
        },
        "lasts": f"{END_S}s",
    }
    experiment = resolve_experiment(Scenario.model_validate({"metadata": {"name": "mix"}, "spec": spec}))
    history = simulate(experiment, _subject(), seed)
    seen = [
        (one.at_s, one.first_token_s)
        for one in history.requests
        if one.ok and one.first_token_s is not None and one.at_s >= CHANGE_S
    ]
    waits = [first_s for _, first_s in seen]
    late = [first_s - LATE_S for first_s in waits if first_s > LATE_S]
    return MixRow(
        times=times,
        seed=seed,
        served=len(waits),
        p50_s=percentile(waits, 50),
        p99_s=percentile(waits, 99),
        late=len(late),
        late_s=math.fsum(late),
        longest_first_s=max(first_s for at_s, first_s in seen if at_s < CHANGE_S + 6),
        longest_later_s=max(first_s for at_s, first_s in seen if at_s >= CHANGE_S + 6),
    )


COLUMNS: Final[Sequence[ResultColumn[MixRow]]] = (
    ResultColumn(heading="long ones", cell=lambda row: f"{row.times} times"),
    ResultColumn(heading="seed", cell=lambda row: f"{row.seed}"),
    ResultColumn(heading="served", cell=lambda row: f"{row.served}"),
    ResultColumn(heading="first token p50", cell=lambda row: f"{row.p50_s:.1f} s"),
    ResultColumn(heading="p99", cell=lambda row: f"{row.p99_s:.1f} s"),
    ResultColumn(heading="late", cell=lambda row: f"{row.late}"),
    ResultColumn(heading="late in sum", cell=lambda row: f"{row.late_s:.0f} s"),
    ResultColumn(heading="longest in the first 6 s", cell=lambda row: f"{row.longest_first_s:.1f} s"),
    ResultColumn(heading="later", cell=lambda row: f"{row.longest_later_s:.1f} s"),
)


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1 when p99 of a run is late."""
    parser = option_parser("mix_change", __doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--times", type=int, nargs="+", choices=list(RATES), default=list(RATES))
    options = parser.parse_args(argv)
    rows = [measure(times, seed) for times in options.times for seed in options.seeds]
    missed = [f"{row.times} times, seed {row.seed}" for row in rows if row.p99_s > LATE_S]
    table = result_table("first tokens after the change", COLUMNS, rows, caption=f"late: after {LATE_S} s")
    return publish(
        [table], options.json, {"rows": [asdict(row) for row in rows], "missed": missed}, met=not missed
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
