"""What the benchmark of detection concludes from its trials."""

from benchmarks.detect import DetectionTrial, missed, percentile


def trials(fault: str, *last_s: float, judge: str = "agent") -> list[DetectionTrial]:
    return [DetectionTrial(judge=judge, fault=fault, first_s=0.0, last_s=one) for one in last_s]


def test_a_percentile_is_a_value_that_was_seen() -> None:
    values = [float(n) for n in range(1, 21)]
    assert (percentile(values, 50), percentile(values, 99), percentile([3.0], 50)) == (10.0, 20.0, 3.0)


def test_a_target_is_for_agents_and_for_the_slowest_of_twenty() -> None:
    assert missed(trials("hang", *[1.2] * 19, 1.4)) == []
    assert missed(trials("hang", *[1.2] * 19, 1.6) + trials("drain", 0.05)) == ["hang"]
    assert missed(trials("crash", 2.0, judge="probe")) == []
