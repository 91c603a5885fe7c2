"""From a change to the last proxy, as a collector hears of it: real server, real Envoy, requests that fail."""

from typing import Any

import pytest

from chaos.fake_engine.engine_faults import EngineErrorAfterWork
from tests.otlp_collector import Collector, ReceivedSpan, collecting
from tests.with_envoy.serve.conftest import Site, document, eventually

pytestmark = pytest.mark.envoy


@pytest.fixture
def collector() -> Any:
    with collecting() as one:
        yield one


async def first(collector: Collector, name: str, **attributes: Any) -> ReceivedSpan:
    """The first trace of this name with these attributes."""

    def found() -> ReceivedSpan | None:
        return next(
            (
                root
                for root in collector.roots(name)
                if all(root.attributes.get(f"switchgear.{key}") == value for key, value in attributes.items())
            ),
            None,
        )

    got: ReceivedSpan = await eventually(found, f"a trace of a {name}")
    return got


async def test_ejection_and_policy_edit_traces_end_at_the_proxy_ack(site: Site, collector: Collector) -> None:
    engines = await site.start_engines(3)
    # Rare probes, so that its answers decide.
    few = document("ResiliencePolicy", "default", {"breaker": {"minCalls": 5}})
    site.write("chat.yaml", site.pool(probe={"interval": "60s"}), site.route(), few)
    child = await site.serve("--otlp", collector.url)
    await site.envoy()
    await site.answered()
    load = site.load()
    await load.more(10)
    await engines[0].set_fault(EngineErrorAfterWork())
    await site.becomes(engines[0], "UNHEALTHY")

    # The ejection's event names request ids that callers know too.
    events = await site.get("/v1/events")
    (out,) = [
        one
        for one in events["events"]
        if one["kind"] == "health" and one["after"] == "UNHEALTHY" and one["engine"]
    ][:1]
    assert out["requests"]
    code, why, _ = await site.switchgear("why", "chat/e0", "--admin", site.admin)
    assert out["requests"][0] in why, (code, why)

    await engines[0].heal()
    site.write("more.yaml", site.route("more", match={"pathPrefix": "/more"}))
    edited = await first(collector, "policies change", **{"policies.version": 2})
    offered, push = collector.below(edited, "offered"), collector.below(edited, "push")
    assert len(offered) == 1
    assert "RDS" in {one.attributes["switchgear.xds.type"] for one in push}
    assert edited.attributes["switchgear.policies.author"] == "files"
    for one in push:
        assert one.attributes["switchgear.proxies"] == 1
        (ack,) = collector.below(one, "ack")
        assert offered[0].start_ns <= one.start_ns <= ack.start_ns <= ack.end_ns <= edited.end_ns
        assert ack.attributes["switchgear.slowest"] == "n1"

    code, _, said = await site.switchgear("apply", "-f", str(site.policies), "--by", "ann", "--admin", site.admin)
    assert code == 0, said
    applied = await first(collector, "policies change", **{"policies.author": "ann"})
    assert len(collector.below(applied, "offered")) == 1

    await load.end()
    await site.stop(child)  # open traces are sent at shutdown
    ejected = await first(collector, "health change", after="UNHEALTHY")
    assert ejected.attributes["switchgear.engine"] == "e0"
    assert ejected.attributes["switchgear.cause"] == "errors"
    assert ejected.attributes["switchgear.requests"] == out["requests"]
    assert ejected.attributes["switchgear.event"] == out["number"]
    (push,) = collector.below(ejected, "push")
    assert push.attributes["switchgear.xds.type"] == "EDS"
    assert collector.below(push, "ack")
    assert {one.resource["service.name"] for one in collector.spans} == {"switchgear"}


async def test_a_collector_that_never_answers_holds_up_neither_service_nor_end(
    site: Site, collector: Collector
) -> None:
    collector.go_on.clear()
    engines = await site.start_engines(2)
    site.write("chat.yaml", site.pool(), site.route())
    child = await site.serve("--otlp", collector.url)
    await site.envoy()
    await site.answered()
    await eventually(collector.asked.is_set, "the collector was asked")
    await engines[0].set_fault(EngineErrorAfterWork())
    load = site.load()
    await site.becomes(engines[0], "UNHEALTHY")
    await load.end()
    assert await site.stop(child) == 0
    assert site.logged(child, "otlp.left_behind")
    assert not collector.spans
