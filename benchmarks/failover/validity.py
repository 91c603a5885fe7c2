"""Whether an experiment says something about who was measured: a run that does not is kept and never reported.

The bench is judged as in ``chaos.measures.validity``, strictly; and since everybody here serves well what is asked
before the fault, one that does not then was not well itself.
"""

from dataclasses import replace
from typing import Final

from benchmarks.failover.history import History
from benchmarks.failover.seen import seen
from benchmarks.failover.setting import Setting
from chaos.measures.validity import STRICT, Bench
from chaos.measures.validity import bench as bench_of

FEWEST_BEFORE_PERCENT: Final = 99.0


def bench(history: History, setting: Setting) -> Bench:
    """The judgement on one experiment."""
    end_s = float("inf")
    found = bench_of(
        seen(history, setting), STRICT, fault_s=history.fault_s - history.began_s, engines_until_s=end_s
    )
    return replace(found, problems=(*found.problems, *_before(history, setting)))


def _before(history: History, setting: Setting) -> list[str]:
    if setting.load_percent > STRICT.busy_percent:
        return []
    # Whose answer was due before the fault: the others it may have hit.
    due_s = history.fault_s - 2.0 * setting.longest_service_s
    before = [one.ok for one in history.outcomes if one.arrived_at_s < due_s]
    good_percent = 100.0 * sum(before) / len(before) if before else 100.0
    if good_percent >= FEWEST_BEFORE_PERCENT:
        return []
    return [f"only {good_percent:.1f} % were served before the fault began"]
