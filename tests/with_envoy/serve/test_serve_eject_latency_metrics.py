"""What alerts go by, measured on real proxies: each hop of an engine's leaving, and what became of every call."""

from typing import Protocol

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from chaos.fake_engine import EngineHang
from tests.with_envoy.serve.conftest import Site, eventually

pytestmark = pytest.mark.envoy


class SeriesSum(Protocol):
    """The sum of the series of a name that have these labels, all of one scrape."""

    def __call__(self, name: str, **labels: str) -> float: ...


async def scraped(site: Site) -> SeriesSum:
    async with aiohttp.ClientSession() as session, session.get(f"http://{site.admin}/metrics") as answer:
        families = list(text_string_to_metric_families(await answer.text()))
    samples = [sample for family in families for sample in family.samples]
    return lambda name, **labels: sum(
        one.value for one in samples if one.name == name and labels.items() <= one.labels.items()
    )


async def test_eject_latency_is_measured_per_stage_and_every_call_counted(site: Site) -> None:
    engines = await site.start_engines(2)
    site.write("chat.yaml", site.pool(), site.route())
    server = await site.serve()
    await site.envoy()
    await site.answered()
    load = site.load()
    await load.more(20)
    await engines[0].set_fault(EngineHang(health="ok"))
    await site.becomes(engines[0], "UNHEALTHY")

    def left(engine: str) -> int:
        """How often it did, says the log: the other one may hang for a moment, where it gets no turn."""
        told = site.logged(server, "engine.health")
        return sum(one["engine"] == f"chat/{engine}" and one["health"] == "UNHEALTHY" for one in told)

    async def hops(*names: str) -> bool:
        seen = await scraped(site)
        gone = {engine: seen("switchgear_engine_departures_total", engine=engine) for engine in ("e0", "e1")}
        told = {seen("switchgear_departure_hop_seconds_count", hop=name) for name in names}
        return gone == {engine: left(engine) for engine in gone} and told == {sum(gone.values())}

    assert left("e0") == 1
    await eventually(lambda: hops("decide", "push", "ack", "news_to_ack"), "endpoints without it are confirmed")
    await engines[0].heal()
    await site.becomes(engines[0], "HEALTHY")
    await eventually(lambda: hops("last_request"), "the last request is known once the engine is back")
    await load.end()
    good = len(load.outcomes) - len(load.failed)

    async def counted() -> bool:
        seen = await scraped(site)
        calls, retries = seen("switchgear_attempts_total"), seen("switchgear_retries_total")
        asked = seen("switchgear_requests_total") - seen("switchgear_requests_refused_total")
        return calls == asked + retries and seen("switchgear_attempts_total", outcome="success") >= good

    await eventually(counted, "every call was reported")
    assert (await scraped(site))("switchgear_attempt_gpu_seconds_total", outcome="success") > 0
