"""What a caller can say to Envoy in its own headers, as seen by a real one: nothing."""

from collections.abc import AsyncIterator

import pytest

from tests.with_envoy.translate.recording_engine import Hearing
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool, route

pytestmark = pytest.mark.envoy

SPOKEN = "from-the-caller"
NAMES = (
    "attempt-count", "decorator-operation", "downstream-service-cluster", "downstream-service-node",
    "expected-rq-timeout-ms", "external-address", "force-trace", "hedge-on-per-try-timeout", "internal", "ip-tags",
    "is-timeout-retry", "max-retries", "not-invented-yet", "original-host", "original-path", "original-url",
    "peer-metadata", "peer-metadata-id", "retriable-header-names", "retriable-status-codes", "retry-grpc-on",
    "retry-on", "upstream-alt-stat-name", "upstream-rq-per-try-timeout-ms", "upstream-rq-timeout-alt-response",
    "upstream-rq-timeout-ms", "upstream-stream-duration-ms",
)  # fmt: skip


@pytest.fixture
async def waits() -> AsyncIterator[Hearing]:
    """An engine that takes a moment for each answer."""
    one = Hearing(wait_s=0.2)
    runner = await one.listen()
    yield one
    await runner.cleanup()


async def test_no_engine_hears_what_a_caller_says_to_envoy(rig, waits):
    one = await rig(pool("p", waits) + route("r", "p"))
    answer = await one.complete(headers={f"x-envoy-{name}": SPOKEN for name in NAMES})
    assert answer.status == 200
    assert not [name for name, value in waits.seen[-1].items() if SPOKEN in value]
    assert waits.seen[-1]["x-envoy-attempt-count"] == "1", "that one is Envoy's"


@pytest.mark.parametrize("stream", [False, True])
async def test_no_caller_sets_times_or_retries(rig, waits, stream):
    """Each would end the answer at once, or have it made again."""
    one = await rig(pool("p", waits) + route("r", "p"))
    for name in ("upstream-rq-timeout-ms", "upstream-rq-per-try-timeout-ms", "upstream-stream-duration-ms"):
        headers = {f"x-envoy-{name}": "20", "x-envoy-retry-on": "5xx,reset", "x-envoy-max-retries": "5"}
        before = len(waits.seen)
        answer = await one.complete(headers=headers, stream=stream)
        assert (name, answer.status, len(waits.seen) - before) == (name, 200, 1)
