"""Status of an object, stable until its state changes."""

from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml

from engine.report import Verdict
from tests.cluster import CRDS
from tests.xds_server.k8s.status.status_fixtures import (
    UNIX_S,
    conditions,
    decided,
    document,
    engine,
    fleet,
    problem,
    programming,
    scene,
)
from xds_server.decide.decisions import Health
from xds_server.k8s.replica_status import NackSummary
from xds_server.k8s.status.object_status import PROGRAMMED, condition, rfc3339, status_of
from xds_server.model.fleet import EngineId
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic

LATER_S = UNIX_S + 60


def fits_its_definition(kind: str, status: Any) -> None:
    given = yaml.safe_load((CRDS / f"{kind.lower()}s.yaml").read_text())
    version = given["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    jsonschema.validate(status, schema)
    assert status.keys() <= schema["properties"].keys()


def test_acked_object_has_accepted_and_programmed_conditions() -> None:
    one = document(kind="ModelRoute", name="r")
    status = status_of(one, scene(one), {}, UNIX_S)
    assert conditions(status) == {
        "Accepted": ("True", "Accepted"),
        "Programmed": ("True", "Programmed"),
        "Healthy": ("True", "Healthy"),
    }
    assert status["observedGeneration"] == 2
    assert "engines" not in status
    fits_its_definition("ModelRoute", status)


def test_rejected_object_status_has_field_reason_and_served_generation() -> None:
    one = document(
        problems=(problem(), problem("spec.slotsPerEngine", "is not a number")), last_accepted='{"model":"m"}'
    )
    status = status_of(one, scene(one), {}, UNIX_S)
    assert conditions(status) == {
        "Accepted": ("False", "Rejected"),
        "Programmed": ("False", "Rejected"),
        "Healthy": ("True", "Healthy"),
    }
    assert status["conditions"][0]["message"] == (
        "the last accepted spec is served; spec.model: is empty; spec.slotsPerEngine: is not a number"
    )
    assert status["lastAccepted"] == {"model": "m"}
    fits_its_definition("EnginePool", status)
    gone = document(problems=(problem(),) * 30, serving=False)
    status = status_of(gone, scene(gone), status, UNIX_S)
    assert status["conditions"][0]["message"].startswith("it is not served; ")
    assert status["conditions"][0]["message"].endswith("and 20 more")
    assert "lastAccepted" not in status
    assert status["digest"] == ""


def test_unserved_duplicate_pool_has_no_engine_counts() -> None:
    older, namesake = document(), document(problems=(problem("metadata.name", "is taken"),), serving=False)
    assert older.name == namesake.name
    seen = scene(older, fleet=fleet(engine("a", Verdict.READY)))
    assert status_of(older, seen, {}, UNIX_S)["engines"]["total"] == 1
    status = status_of(namesake, seen, {}, UNIX_S)
    assert status["engines"] == {"total": 0, "healthy": 0, "unknown": 0, "draining": 0, "unhealthy": 0}
    assert status["verdicts"] == {}


def test_equal_input_gives_equal_status() -> None:
    one = document()
    waiting = scene(one, programmed=programming("replica-a"))
    first = status_of(one, waiting, {}, UNIX_S)
    assert conditions(first)["Programmed"] == ("False", "Pending")
    assert status_of(one, waiting, first, LATER_S) == first
    other = status_of(one, scene(one, programmed=programming("replica-b")), first, LATER_S)
    assert condition(other, PROGRAMMED)["message"] == "waiting for proxies of replica-b"
    assert condition(other, PROGRAMMED)["lastTransitionTime"] == rfc3339(UNIX_S)
    done = status_of(one, scene(one), other, LATER_S)
    assert condition(done, PROGRAMMED)["lastTransitionTime"] == rfc3339(LATER_S)
    assert condition(done, "Accepted")["lastTransitionTime"] == rfc3339(UNIX_S)


def test_programmed_condition_is_sticky() -> None:
    one = document()
    done = status_of(one, scene(one), {}, UNIX_S)
    # Another object's change is in flight, then no proxy is connected.
    for meanwhile in (programming("replica-a"), programming(proxies=0)):
        assert status_of(one, scene(one, programmed=meanwhile), done, LATER_S) == done
    edited = document(generation=3)
    behind = scene(edited, programmed=programming("replica-a"))
    assert conditions(status_of(edited, behind, done, LATER_S))["Programmed"] == ("False", "Pending")
    # The same spec with other served content: its engines changed.
    moved = scene(one, programmed=programming("replica-a"), texts={one.file: "other engines"})
    assert conditions(status_of(one, moved, done, LATER_S))["Programmed"] == ("False", "Pending")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"programmed": programming(proxies=0)}, ("Unknown", "NoProxies")),
        ({"digest": "", "texts": {}}, ("False", "Pending")),
        ({"hold_reason": "half of the engines would go"}, ("False", "Held")),
    ],
)
def test_programmed_message_gives_the_reason(given: dict[str, Any], expected: tuple[str, str]) -> None:
    one = document()
    assert conditions(status_of(one, scene(one, **given), {}, UNIX_S))["Programmed"] == expected


def test_nack_condition_is_on_its_own_object_only() -> None:
    one, other = document(), document(name="pool-2")
    refusal = NackSummary(resource="cluster pool", reason="no such filter", origins=("ns/EnginePool/pool:3",))
    seen = scene(one, other, programmed=programming(refusals=(refusal,)))
    done = status_of(one, scene(one), {}, UNIX_S)
    status = status_of(one, seen, done, LATER_S)
    assert conditions(status)["Programmed"] == ("False", "Refused")
    assert condition(status, PROGRAMMED)["message"] == "proxies refused cluster pool: no such filter"
    assert conditions(status_of(other, seen, {}, UNIX_S))["Programmed"] == ("True", "Programmed")


def test_engine_counts_ignore_load() -> None:
    one = document()
    verdicts = {
        "a": (Verdict.READY, Health.HEALTHY),
        "b": (Verdict.BUSY, Health.HEALTHY),
        "c": (Verdict.HUNG, Health.UNHEALTHY),
        "d": (Verdict.DRAINING, Health.DRAINING),
        "e": (None, Health.HEALTHY),
    }
    engines = fleet(*(engine(name, verdict) for name, (verdict, _) in verdicts.items()), engine("f", None))
    known = {EngineId("pool", name): decided(*given) for name, given in verdicts.items()}
    status = status_of(one, scene(one, fleet=engines, engines=known), {}, UNIX_S)
    assert status["engines"] == {"total": 6, "healthy": 2, "unknown": 1, "draining": 1, "unhealthy": 2}
    assert status["verdicts"] == {"draining": 1, "hung": 1, "ready": 2, "unknown": 1}
    fits_its_definition("EnginePool", status)


def test_foreign_conditions_are_kept() -> None:
    one = document()
    theirs = {"type": "Approved", "status": "True", "reason": "By", "message": "", "lastTransitionTime": "t"}
    assert theirs in status_of(one, scene(one), {"conditions": [theirs]}, UNIX_S)["conditions"]
    assert len(status_of(one, scene(one), {"conditions": "nonsense"}, UNIX_S)["conditions"]) == 3


def test_unknown_engine_becomes_healthy_with_its_first_request() -> None:
    one = document()
    silent = fleet(engine("a", None))
    known = {EngineId("pool", "a"): decided(None, Health.HEALTHY)}
    status = status_of(one, scene(one, fleet=silent, engines=known), {}, UNIX_S)
    assert status["engines"] == {"total": 1, "healthy": 0, "unknown": 1, "draining": 0, "unhealthy": 0}
    called = PoolTraffic(engines={"a": EngineTraffic(neutral=1)}, proxies={})
    heard = replace(silent, traffic={"pool": called})
    status = status_of(one, scene(one, fleet=heard, engines=known), {}, UNIX_S)
    assert status["engines"] == {"total": 1, "healthy": 1, "unknown": 0, "draining": 0, "unhealthy": 0}
