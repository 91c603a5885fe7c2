"""Faults on engines of fallback pools and of regions: what they hit, and errors with their location."""

import pytest

from chaos.scenario.resolve_experiment import resolve_experiment
from policies.origin import line_of
from tests.chaos.scenario.conftest import Make, problems_of, written

TOPOLOGY = """\
topology:
  zones: [a, b, c]
  regions: [{name: west, zones: [a, b]}, {name: east, zones: [c]}]
  engines: [{count: 6}]
  fallbacks:
  - engines: [{count: 2}]
  - engines: [{count: 1, zone: c, slots: 2, slowness: 3}]
  proxies: [{zone: a}, {zone: c}]
"""
FAULT_LINE = 16


def fault(target: str, kind: str = "hang") -> str:
    return f"{TOPOLOGY}faults:\n- {{fault: {{kind: {kind}}}, target: {target}, at: 8s, lasts: 9s}}\n"


def test_engines_of_fallbacks_are_placed_by_group_and_zone(scenario: Make) -> None:
    found = resolve_experiment(scenario(TOPOLOGY))
    assert [(one.name, one.zone, one.region) for one in found.engines][:3] == [
        ("e0", "a", "west"),
        ("e1", "b", "west"),
        ("e2", "c", "east"),
    ]
    first, second = found.fallbacks
    assert [(one.name, one.zone) for one in first] == [("f0-e0", "a"), ("f0-e1", "b")]
    assert [(one.name, one.zone, one.region, one.slots, one.slowness) for one in second] == [
        ("f1-e0", "c", "east", 2, 3.0)
    ]
    assert [(one.name, one.region) for one in found.proxies] == [("p0", "west"), ("p1", "east")]
    assert found.slots == 48, "of the pool under test alone"


@pytest.mark.parametrize(
    ("kind", "target", "names"),
    [
        ("hang", "{}", ("e0", "e1", "e2", "e3", "e4", "e5")),
        ("hang", "{fallback: 0}", ("f0-e0", "f0-e1")),
        ("hang", "{fallback: 1}", ("f1-e0",)),
        ("hang", "{fallback: 0, engine: 1}", ("f0-e1",)),
        ("hang", "{fallback: 0, zone: a}", ("f0-e0",)),
        ("hang", "{region: east}", ("e2", "e5")),
        ("hang", "{region: west, zone: b}", ("e1", "e4")),
        ("proxy_frozen", "{region: east}", ("p1",)),
        ("zone_loss", "{region: west}", ("e0", "e1", "e3", "e4")),
        ("zone_loss", "{fallback: 0, zone: a}", ("f0-e0",)),
        ("partition", "{region: east}", ("e2", "e5", "f1-e0", "p1")),
        ("partition", "{zone: a}", ("e0", "e3", "f0-e0", "p0")),
    ],
)
def test_fault_hits_the_engines_of_its_pool_and_region(
    scenario: Make, kind: str, target: str, names: tuple[str, ...]
) -> None:
    (outage,) = resolve_experiment(scenario(fault(target, kind))).outages
    assert outage.targets == names


@pytest.mark.parametrize(
    ("kind", "target", "code", "path", "says"),
    [
        ("hang", "{fallback: 2}", "SC002", "fallback", "unknown fallback 2"),
        ("hang", "{fallback: 1, engine: 1}", "SC002", "engine", "unknown engine 1"),
        ("hang", "{region: wst}", "SC001", "region", 'the topology has no region "wst"'),
        ("hang", "{region: east, zone: a}", "SC004", "", "the target matches nothing"),
        ("proxy_frozen", "{fallback: 0}", "SC003", "fallback", "proxy_frozen hits proxies"),
        ("partition", "{fallback: 0}", "SC003", "fallback", "partition hits whole zones"),
        ("partition", "{}", "SC004", "", "partition needs a zone or region"),
        ("partition", "{region: west}", "SC003", "region", "partition cuts zones"),
    ],
)
def test_wrong_target_is_refused_with_file_line_and_field(
    kind: str, target: str, code: str, path: str, says: str
) -> None:
    (problem,) = problems_of(written(fault(target, kind)))
    assert problem.code == code
    assert problem.path == "spec.faults[0].target" + (f".{path}" if path else "")
    assert line_of(problem.at) == FAULT_LINE
    assert says in problem.message


def test_hints_name_the_nearest_region_and_the_missing_list() -> None:
    (near,) = problems_of(written(fault("{region: wst}")))
    assert near.hint == "did you mean west?"
    assert near.allowed == '"west", "east"'
    text = "faults:\n- {fault: {kind: hang}, target: {fallback: 0}, at: 8s, lasts: 9s}\n"
    (missing,) = problems_of(written(text))
    assert missing.hint == "add the fallback pool to spec.topology.fallbacks"


@pytest.mark.parametrize(
    ("topology", "code", "path"),
    [
        ("{regions: [{name: x, zones: [b]}]}", "SC001", "regions[0].zones[0]"),
        ("{fallbacks: [{engines: [{count: 1, zone: b}]}]}", "SC001", "fallbacks[0].engines[0].zone"),
        ("{zones: [a, b], regions: [{name: x, zones: [a]}, {name: x, zones: [b]}]}", "SC012", "regions[1].name"),
        (
            "{zones: [a, b], regions: [{name: x, zones: [a]}, {name: y, zones: [b, a]}]}",
            "SC012",
            "regions[1].zones[1]",
        ),
    ],
)
def test_contradictions_of_regions_and_fallbacks_are_found(topology: str, code: str, path: str) -> None:
    (problem,) = problems_of(written(f"topology: {topology}\n"))
    assert (problem.code, problem.path) == (code, f"spec.topology.{path}")


def test_blast_radius_counts_engines_of_all_pools() -> None:
    text = fault("{fallback: 0}") + "blastRadius: {enginesPercent: 20}\n"
    (problem,) = problems_of(written(text))
    assert problem.code == "SC007"
    assert "2 of 9 engines" in problem.message
    assert not problems_of(written(fault("{fallback: 0}") + "blastRadius: {enginesPercent: 23}\n"))
