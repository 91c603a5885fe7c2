"""What the benchmark of detection concludes from its trials."""

from benchmarks.detect import missed
from benchmarks.harness import Trial


def trials(fault: str, *last_s: float, judge: str = "agent") -> list[Trial]:
    labels = {"judge": judge, "fault": fault}
    return [Trial(labels=labels, values={"first_s": 0.0, "last_s": one}) for one in last_s]


def test_a_target_is_for_agents_and_for_the_slowest_of_twenty() -> None:
    assert missed(trials("hang", *[1.2] * 19, 1.4)) == []
    assert missed(trials("hang", *[1.2] * 19, 1.6) + trials("drain", 0.05)) == ["hang"]
    assert missed(trials("crash", 2.0, judge="probe")) == []
