"""Desired Istio objects of each engine."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from istio.live.desired_state import SERVING_LABEL, DesiredState, entry_name
from tests.istio.live.conftest import POLICY, pod
from xds_server.decide.decisions import Health
from xds_server.model.fleet import EngineId

CRDS = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "istio-crds.yaml"

Asked = Callable[..., DesiredState]


def test_engines_outside_of_the_cluster_are_workload_entries(asked: Asked) -> None:
    entries = asked(out={"chat/b": Health.UNHEALTHY}).entries
    assert set(entries) == {("models", "chat.a"), ("models", "chat.b"), ("models", "chat.c"), ("here", "other.a")}
    body = entries["models", "chat.b"].body()
    assert body["spec"] == {
        "address": "127.0.0.1",
        "ports": {"http": 8002},
        "labels": {
            SERVING_LABEL: "false",
            "switchgear.dev/pool": "chat",
            "topology.kubernetes.io/region": "r1",
            "topology.kubernetes.io/zone": "z1",
        },
        "locality": "r1/z1",
    }
    assert entries["models", "chat.a"].serving


def test_draining_engine_is_not_serving(asked: Asked) -> None:
    assert not asked(out={"chat/a": Health.DRAINING}).entries["models", "chat.a"].serving


def test_pods_get_a_label_and_no_entry(asked: Asked) -> None:
    told = asked(out={"chat/a": Health.UNHEALTHY}, pods={"chat/a": pod("a-0"), "chat/b": pod("b-0")})
    assert {key: mark.serving for key, mark in told.pods.items()} == {
        ("models", "a-0"): False,
        ("models", "b-0"): True,
    }
    assert ("models", "chat.a") not in told.entries
    assert ("models", "chat.c") in told.entries


def test_an_engine_that_the_cluster_lists_without_a_pod_is_left_alone(asked: Asked) -> None:
    found = POLICY.replace("  model: m\n", "  model: m\n  kubernetes: {service: vllm, port: 8000}\n", 1)
    told = asked(policy=found, pods={"chat/a": pod("a-0")})
    assert set(told.pods) == {("models", "a-0")}
    assert set(told.entries) == {("here", "other.a")}


@pytest.mark.parametrize("first", ["chat/a", "other/a"])
def test_a_pod_of_two_pools_serves_while_one_of_them_wants_it(asked: Asked, first: str) -> None:
    shared = {"chat/a": pod("a-0"), "other/a": pod("a-0")}
    assert asked(out={first: Health.UNHEALTHY}, pods=shared).pods["models", "a-0"].serving
    both = {"chat/a": Health.UNHEALTHY, "other/a": Health.UNHEALTHY}
    assert not asked(out=both, pods=shared).pods["models", "a-0"].serving


def test_half_open_engine_has_reduced_weight(asked: Asked) -> None:
    assert {one.weight for one in asked().entries.values()} == {0}
    told = asked(trial={"chat/b": 25.0}).entries
    assert {key[1]: one.weight for key, one in told.items()} == {
        "chat.a": 100,
        "chat.b": 25,
        "chat.c": 100,
        "other.a": 0,
    }
    unequal = POLICY.replace("name: c,", "name: c, slots: 16,")
    assert asked(policy=unequal).entries["models", "chat.a"].weight == 50


POOLS = st.from_regex(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
ENGINES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,80}[A-Za-z0-9])?", fullmatch=True)
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@given(st.sets(st.tuples(POOLS, ENGINES), min_size=2, max_size=8))
def test_names_are_names_and_differ(engines: set[tuple[str, str]]) -> None:
    names = {entry_name(EngineId(*one)) for one in engines}
    assert len(names) == len(engines)
    assert all(len(name) <= 63 and NAME.fullmatch(name) for name in names), names


def test_no_two_engines_share_a_name() -> None:
    assert entry_name(EngineId("a-b", "c")) != entry_name(EngineId("a", "b-c"))
    assert entry_name(EngineId("a", "B")) != entry_name(EngineId("a", "b"))
    assert entry_name(EngineId("chat", "10.0.0.1:8000")) == entry_name(EngineId("chat", "10.0.0.1:8000"))


def test_applied_entry_fits_the_workloadentry_schema(asked: Asked) -> None:
    if not CRDS.is_file():
        pytest.skip("no published Istio schemas next to the repository")
    crds = [one for one in yaml.safe_load_all(CRDS.read_text()) if one]
    crd = next(one for one in crds if one["spec"]["names"]["kind"] == "WorkloadEntry")
    schema = next(one for one in crd["spec"]["versions"] if one["name"] == "v1")["schema"]["openAPIV3Schema"]
    fields = schema["properties"]["spec"]["properties"]
    body = asked(trial={"chat/b": 25.0}).entries["models", "chat.b"].body()
    spec = body["spec"]
    assert isinstance(spec, dict)
    assert set(spec) <= set(fields)
    assert isinstance(spec["weight"], int)
    assert fields["weight"]["type"] == "integer"
