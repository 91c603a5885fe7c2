"""Events are recorded on pods, aggregated and rate limited."""

from hypothesis import given
from hypothesis import strategies as st

from tests.xds_server.k8s.status.status_fixtures import UNIX_S, document, pod, went
from xds_server.decide.decisions import Health
from xds_server.k8s.status.event_recorder import EventRecorder, KubeEvent, event_for, event_object, repeat_patch
from xds_server.k8s.status.object_status import rfc3339
from xds_server.model.fleet import EngineId
from xds_server.model.token_bucket import RateLimit, TokenBucket, available_tokens, take_token

PODS = {EngineId("pool", "e1"): pod()}
POOLS = {"pool": document()}


def out(number: int = 1, at: float = UNIX_S, engine: str = "e1") -> KubeEvent:
    found = event_for(went(number, Health.UNHEALTHY, at=at, engine=engine), PODS, POOLS)
    assert found is not None
    return found


def test_ejection_and_readmission_events_are_recorded_on_pod_or_pool() -> None:
    assert (out().involved_object.kind, out().reason, out().warning) == ("Pod", "EngineEjected", True)
    assert out().message == "pool/e1: it holds requests and gives nothing"
    other = out(engine="by hand")
    assert (other.involved_object.kind, other.involved_object.name, other.involved_object.uid) == (
        "EnginePool",
        "pool",
        "u",
    )
    assert event_for(went(1, Health.UNHEALTHY, engine="x"), {}, {}) is None
    draining = event_for(went(1, Health.DRAINING), PODS, POOLS)
    assert draining is not None
    assert (draining.reason, draining.warning) == ("EngineDraining", False)
    back = event_for(went(1, Health.HEALTHY, before="UNHEALTHY"), PODS, POOLS)
    assert back is not None
    assert back.reason == "EngineAdmitted"
    assert event_for(went(1, Health.HEALTHY, before=""), PODS, POOLS) is None


def test_repeated_events_are_aggregated_with_a_count() -> None:
    tellings = EventRecorder(of_one=RateLimit(burst=1, per_s=0.1))
    tellings.add([out(1, UNIX_S), out(2, UNIX_S + 5)])
    (first,) = tellings.due(0.0)
    assert (first.times, first.first_unix_s, first.last_unix_s) == (2, UNIX_S, UNIX_S + 5)
    tellings.add([out(3, UNIX_S + 6)])
    assert tellings.due(1.0) == ()
    tellings.add([out(4, UNIX_S + 7)])
    (second,) = tellings.due(11.0)
    assert second.times == 2
    assert second.name == first.name
    event = event_object(first, "replica")
    assert (event["count"], event["lastTimestamp"]) == (2, rfc3339(UNIX_S + 5))
    assert repeat_patch(second, event) == {
        "count": 4,
        "lastTimestamp": rfc3339(UNIX_S + 7),
        "message": second.message,
    }
    # The previous leader recorded it, and this replica saw the same.
    assert repeat_patch(first, event) is None


def test_event_rate_limit_is_per_object() -> None:
    tellings = EventRecorder(of_one=RateLimit(burst=1, per_s=0.01), of_all=RateLimit(burst=100, per_s=1))
    tellings.add([out()])
    assert len(tellings.due(0.0)) == 1
    tellings.add([out(), out(engine="by hand")])
    assert [one.involved_object.kind for one in tellings.due(1.0)] == ["EnginePool"]
    assert len(tellings) == 1


def test_event_rate_limit_drops_and_counts() -> None:
    tellings = EventRecorder(most=3, of_all=RateLimit(burst=1, per_s=1))
    many = [
        KubeEvent(
            involved_object=out().involved_object,
            engine=f"pool/{number}",
            reason="EngineEjected",
            warning=True,
            message="",
            times=1,
            first_unix_s=UNIX_S,
            last_unix_s=UNIX_S,
        )
        for number in range(5)
    ]
    tellings.add(many)
    assert (len(tellings), tellings.dropped) == (3, 2)
    (one,) = tellings.due(0.0)
    tellings.add([one])
    tellings.requeue(one)
    assert len(tellings) == 3
    again = [telling for now in range(1, 9) for telling in tellings.due(now)]
    assert {telling.name: telling.times for telling in again}[one.name] == 2
    tellings.add(many)
    tellings.clear()
    assert not len(tellings)


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 3)), max_size=200))
def test_event_rate_limit_token_bucket_is_never_exceeded(steps: list[tuple[int, float]]) -> None:
    of_one, of_all = RateLimit(burst=2, per_s=0.5), RateLimit(burst=4, per_s=1.5)
    tellings = EventRecorder(of_one, of_all)
    now_s, sent = 0.0, 0
    by_object: dict[str, int] = {}
    given_in = told_out = 0
    for who, wait_s in steps:
        now_s += wait_s
        tellings.add([out(engine="e1" if who else "by hand")])
        given_in += 1
        for one in tellings.due(now_s):
            sent += 1
            told_out += one.times
            by_object[one.involved_object.uid] = by_object.get(one.involved_object.uid, 0) + 1
    assert sent <= of_all.burst + now_s * of_all.per_s
    assert all(count <= of_one.burst + now_s * of_one.per_s for count in by_object.values())
    rest = tellings.due(now_s + 1e6)
    assert told_out + sum(one.times for one in rest) == given_in


def test_token_bucket_ignores_a_clock_going_back() -> None:
    rate = RateLimit(burst=2, per_s=1)
    used = take_token(take_token(None, rate, 10.0), rate, 10.0)
    assert used == TokenBucket(tokens=0, at_s=10.0)
    assert take_token(used, rate, 5.0) is None
    assert available_tokens(used, rate, 100.0) == 2
