"""Checks of versions, clocks, files, rights, pods, proxies and engines."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import test_rbac_least_privilege as granted
from tests.xds_server.admin_api import rows
from xds_server.admin_api.server_types import DiskSpace, ProxyInfo, ServerInfo
from xds_server.admin_api.status_types import PolicyProblem, ProxyPoolStatus, ProxyStatus, RefusedResource
from xds_server.diagnosis import cluster_checks, process_checks
from xds_server.diagnosis.check_result import CheckState
from xds_server.diagnosis.conditions import of_engines, of_policies, of_pools, of_proxies, of_telemetry
from xds_server.model.software_version import parsed_version

ROOT = Path(__file__).parents[3]


def test_minimum_versions_match_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = {"python": project["requires-python"].removeprefix(">=")}
    for one in project["dependencies"]:
        name, _, version = one.partition(">=")
        said[name] = version.partition(",")[0]
    assert {name: parsed_version(said[name]) for name in process_checks.LEAST} == dict(process_checks.LEAST)


@pytest.mark.parametrize(
    ("theirs", "asked", "answered", "skew"),
    [(100.5, 100, 101, 0), (90, 100, 101, -10), (111, 100, 101, 10), (100, 100, 100, 0)],
)
def test_round_trip_time_is_not_clock_skew(theirs: float, asked: float, answered: float, skew: float) -> None:
    assert process_checks.skew_s(theirs, asked, answered) == skew


def test_clock_skew_has_a_direction() -> None:
    assert process_checks.on_clock("x", 2.0) is None
    ahead, behind = process_checks.on_clock("x", 30.0), process_checks.on_clock("x", -30.0)
    assert ahead is not None
    assert ahead.sentence == "30 s ahead of this machine's clock"
    assert behind is not None
    assert behind.code == "SG232"


def test_old_versions_fail_and_version_mismatch_warns() -> None:
    (old,) = process_checks.on_versions("the server", "3.11.2", {"grpcio": "1.60.1", "protobuf": ""})
    assert (old.state, old.code) == (CheckState.FAIL, "SG231")
    assert "grpcio 1.60.1 (minimum 1.70)" in old.sentence
    assert "protobuf missing" in old.sentence
    (fine,) = process_checks.on_versions("the server", "3.12.0rc1", {"grpcio": "1.70.0"})
    assert fine.state is CheckState.OK
    assert process_checks.on_server_version("1.0", "2.0").code == "SG230"
    assert process_checks.on_server_version("1.0", "1.0").state is CheckState.OK


def server_info(**fields: Any) -> ServerInfo:
    known: dict[str, Any] = {
        "python": "3.12.1", "libraries": {}, "platform": "linux", "now_unix_s": 1.0, "listen": "",
        "gated_pools": (),
    }  # fmt: skip
    return ServerInfo(**(known | fields))


@pytest.mark.parametrize(
    ("used", "limit", "connections", "state"),
    [
        (90, 100, 1, CheckState.FAIL),
        (10, 100, 30, CheckState.WARN),
        (10, 100, 20, CheckState.OK),
        (10, None, 2000, CheckState.OK),
    ],
)
def test_open_files_check(used: int, limit: int | None, connections: int, state: CheckState) -> None:
    info = server_info(open_files=used, open_files_limit=limit)
    assert process_checks.on_files(info, connections).state is state


def test_disk_check() -> None:
    assert process_checks.on_disk(None) is None
    disk = DiskSpace(folder="/s", total_bytes=1 << 40, free_bytes=1 << 30, writable=True)
    for one, state in (
        (disk, CheckState.OK),
        (replace(disk, free_bytes=1), CheckState.FAIL),
        (replace(disk, writable=False), CheckState.FAIL),
    ):
        found = process_checks.on_disk(one)
        assert found is not None
        assert found.state is state


def test_old_or_incomplete_envoys_are_named() -> None:
    lua = ("envoy.filters.http.lua",)
    proxies = [
        ProxyInfo(node="fine", user_agent="envoy", version="1.40.0", lacks=()),
        ProxyInfo(node="oldest", user_agent="envoy", version="1.36.4", lacks=()),
        ProxyInfo(node="old", user_agent="envoy", version="1.30.1", lacks=()),
        ProxyInfo(node="bare", user_agent="envoy", version="1.41.0", lacks=lua),
        ProxyInfo(node="client", user_agent="gRPC Python", version="1.80", lacks=None),
    ]
    found = {(one.subject, one.state.value, one.code) for one in process_checks.on_envoys(proxies)}
    assert found == {
        ("proxy old", "warn", "SG252"),
        ("proxy bare", "fail", "SG253"),
        ("Envoy", "ok", ""),
    }


def test_checked_rights_match_the_chart() -> None:
    def rights(of: Any) -> set[granted.Right]:
        return {(one.group, f"{one.resource}/{one.part}" if one.part else one.resource, one.verb) for one in of}

    assert rights(cluster_checks.READS) == granted.READ | granted.REPLICAS
    assert rights(cluster_checks.NODES) == granted.NODES
    assert rights(cluster_checks.WRITES) == granted.WRITE_STATUS | granted.WRITER
    assert rights(cluster_checks.GATES) == granted.GATES


def test_missing_vital_right_fails() -> None:
    answers: dict[cluster_checks.Right, bool | None] = dict.fromkeys(
        (*cluster_checks.READS, *cluster_checks.GATES, *cluster_checks.NODES), True
    )
    assert {one.state for one in cluster_checks.rbac_checks(answers)} == {CheckState.OK}
    answers |= {cluster_checks.READS[0]: False, cluster_checks.GATES[0]: False, cluster_checks.NODES[0]: None}
    found = {one.subject: (one.state, one.code) for one in cluster_checks.rbac_checks(answers) if one.code}
    assert found == {
        "rights to read policies": (CheckState.FAIL, "SG240"),
        "rights to set readiness gates": (CheckState.WARN, "SG240"),
        "rights to read zones and taints": (CheckState.WARN, "SG241"),
    }


def pod(grace_s: int | None, *args: str, hook: tuple[str, ...] = ()) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "containers": [{"args": list(args), "lifecycle": {"preStop": {"exec": {"command": list(hook)}}}}]
    }
    if grace_s is not None:
        spec["terminationGracePeriodSeconds"] = grace_s
    return {"metadata": {"name": "chat-0", "namespace": "inference"}, "spec": spec}


@pytest.mark.parametrize(
    ("one", "states"),
    [
        (pod(30, hook=("python3", "ask_agent.py", "drain", "--deadline=900")), [CheckState.FAIL]),
        (pod(905, hook=("python3", "ask_agent.py", "drain", "--deadline=900")), [CheckState.OK]),
        (pod(None, "--drain-deadline=45s"), [CheckState.FAIL]),
        (pod(None, "--drain-deadline=20s"), [CheckState.OK]),
        (pod(1, "--drain-deadline=$(DEADLINE)"), []),
        (pod(1), []),
        ({}, []),
    ],
)
def test_grace_period_must_cover_the_drain(one: dict[str, Any], states: list[CheckState]) -> None:
    found = list(cluster_checks.grace_period_checks([one]))
    assert [check.state for check in found] == states
    if states == [CheckState.FAIL]:
        assert found[0].code == "SG243"
        assert found[0].subject == "pod inference/chat-0"


PROBLEM = PolicyProblem(code="SG023", place="a:1:1", path="", message="no", hint="")


@pytest.mark.parametrize(
    ("fields", "codes"),
    [
        ({}, []),
        ({"state": "refused", "errors": (PROBLEM,)}, ["SG200"]),
        ({"state": "held", "held": "would remove 9 of 10"}, ["SG201"]),
        ({"lost_s": {"pods": 3.0}, "stale": True}, ["SG202", "SG203"]),
        ({"state": "unread"}, ["SG207"]),
    ],
)
def test_policy_findings(fields: dict[str, Any], codes: list[str]) -> None:
    assert [one.code for one in of_policies(rows.policies_status(**fields), 0.0)] == codes


def test_proxy_findings() -> None:
    def proxy(state: str, age_s: float, **more: Any) -> ProxyStatus:
        one = RefusedResource(name="r", version="v2", origins=(), reason="bad")
        kind = rows.type_status(state=state, age_s=age_s, refused=(one,) if state == "NACK" else ())
        return rows.proxy_status(types=(kind,), **more)

    assert [one.code for one in of_proxies([], 0.0)] == ["SG206"]
    assert [one.code for one in of_proxies([proxy("STALE", 5)], 0.0)] == ["SG274"]
    assert [one.code for one in of_proxies([proxy("STALE", 50), proxy("NACK", 1)], 0.0)] == [
        "SG205",
        "SG204",
    ]
    traffic = ProxyPoolStatus(
        pool="chat", arrivals_per_s=0.0, shed_per_s=0.0, retries_per_s=0.0, in_flight=0, ceiling_interactive=None,
        ceiling_batch=None, telemetry_age_s=None, shuns=(),
    )  # fmt: skip
    silent = proxy("SYNCED", 1, traffic=(traffic,))
    assert [one.code for one in of_telemetry(silent)] == ["SG224"]
    assert not list(of_telemetry(replace(silent, connected_s=1.0)))


def test_pool_without_engines_is_critical() -> None:
    (found,) = of_pools(["chat", "empty"], [rows.engine_status(pool="chat")], [])
    assert (found.severity, found.code, found.sentence) == (
        "critical",
        "SG228",
        "has no engine: without a fallback its requests get 503",
    )
    assert not list(of_pools(["chat"], [rows.engine_status(pool="chat")], []))


def test_engine_findings() -> None:
    lost = rows.agent_status(connected=False, trouble="refused")
    assert not list(of_engines([rows.engine_status()], 0.0))
    changes: list[tuple[dict[str, Any], str]] = [
        ({"health": "UNHEALTHY"}, "SG208"),
        ({"verdict": "misconfigured", "evidence": "HTTP 401"}, "SG227"),
        ({"agent": lost}, "SG222"),
        ({"report_age_s": None}, "SG223"),
        ({"report_age_s": 99.0}, "SG223"),
    ]
    for change, code in changes:
        assert [one.code for one in of_engines([rows.engine_status(**change)], 0.0)] == [code], change


def test_many_engines_in_one_state_are_one_condition() -> None:
    lost = [rows.engine_status(f"e{n}", health="UNHEALTHY", verdict="hung", reason="hung") for n in range(9)]
    (found,) = of_engines(lost, 0.0)
    assert (found.code, found.subject, found.count) == ("SG208", "9 engines of chat, z1", 9)
    assert len(list(of_engines(lost[:3], 0.0))) == 3
