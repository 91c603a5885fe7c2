"""The scenario library: valid, small enough for two cores, and found by name."""

import pytest

from chaos.scenario.scenario_library import (
    FOLDER,
    FULL,
    QUICK,
    STANDARD,
    chosen_scenarios,
    scenario_library,
    suite,
)
from chaos.scenario.scenario_reader import LoadedScenario, read_scenarios
from policies.findings import PolicyError, PolicyErrors

FILES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_library_scenarios_resolve_and_fit_a_small_machine(file: object) -> None:
    (one,) = read_scenarios([next(known for known in FILES if known == file)])
    experiment = one.experiment()
    assert one.name == one.file.stem
    assert experiment.rate_per_s <= 110
    assert experiment.seconds <= 38
    spec = one.scenario.spec
    # What is rehearsed: faults, groups of callers, or one hot prompt.
    hot = spec.load.conversations is not None and spec.load.conversations.hot_percent > 0
    assert sum((bool(experiment.outages), bool(spec.load.callers), hot)) == 1
    if experiment.outages:
        # Leave time to observe the recovery.
        assert experiment.seconds - experiment.healed_s >= 3
        assert experiment.fault_s >= 5
    assert len(spec.incident) > 100
    assert spec.hypothesis.amplification is not None
    assert spec.hypothesis.wasted_percent is not None
    promised = spec.hypothesis
    goodput = (promised.goodput_percent, promised.goodput_of_possible_percent, promised.caller_goodput_percent)
    assert any(one is not None for one in goodput)


def test_library_scenarios_are_distinct() -> None:
    assert len(scenario_library()) >= 18
    assert len({one.scenario.spec.title for one in scenario_library().values()}) == len(scenario_library())


def test_quick_fits_three_minutes_for_four_policy_sets() -> None:
    (only,) = suite(QUICK)
    assert only.experiment().seconds <= 30
    assert only.experiment().rate_per_s <= 70
    assert len({one.fault.kind for one in only.experiment().outages}) >= 4


def test_full_and_standard_suites() -> None:
    assert [one.name for one in suite(FULL)] == sorted(file.stem for file in FILES)
    standard = {one.name for one in suite(STANDARD)}
    assert {"one-hangs", "half-crash", "zone-loss", "control-plane-dies", "retry-storm"} < standard
    assert QUICK not in standard


def test_scenarios_are_chosen_by_name_and_by_file() -> None:
    file = str(FOLDER / "half-hangs.yaml")
    names = [one.name for one in chosen_scenarios(["one-hangs", file, "one-hangs"])]
    assert names == ["one-hangs", "half-hangs"]
    assert len(chosen_scenarios([str(FOLDER)])) == len(FILES)


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(PolicyErrors) as caught:
        chosen_scenarios(["half-hang", "one-hangs", "no/such/file.yaml"])
    first, second = (one for one in caught.value.exceptions if isinstance(one, PolicyError))
    assert (first.code, first.hint) == ("SC014", "did you mean half-hangs?")
    assert second.code == "SG001"
    with pytest.raises(PolicyErrors, match="unknown suite quik"):
        suite_named("quik")


def suite_named(name: str) -> tuple[LoadedScenario, ...]:
    try:
        return suite(name)
    except PolicyErrors as errors:
        raise PolicyErrors(str(errors.exceptions[0]), list(errors.exceptions)) from errors
