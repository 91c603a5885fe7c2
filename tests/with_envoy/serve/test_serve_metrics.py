"""What alerts go by, measured on real proxies: each hop of an engine's leaving, and what became of every call."""

from typing import Protocol

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from chaos.fake_engine import Hang

from .conftest import Site, eventually

pytestmark = pytest.mark.envoy


class Seen(Protocol):
    """The sum of the series of a name that have these labels, all of one scrape."""

    def __call__(self, name: str, **labels: str) -> float: ...


async def scraped(site: Site) -> Seen:
    async with aiohttp.ClientSession() as session, session.get(f"http://{site.admin}/metrics") as answer:
        families = list(text_string_to_metric_families(await answer.text()))
    samples = [sample for family in families for sample in family.samples]
    return lambda name, **labels: sum(
        one.value for one in samples if one.name == name and labels.items() <= one.labels.items()
    )


async def told(site: Site, name: str, **labels: str) -> float:
    return (await scraped(site))(name, **labels)


async def test_each_hop_of_a_hang_is_measured_and_every_call_counted(site: Site) -> None:
    engines = await site.start_engines(2)
    site.write("chat.yaml", site.pool(), site.route())
    await site.serve()
    await site.envoy()
    await site.answered()
    load = site.load()
    await load.more(20)
    await engines[0].set_fault(Hang(health="ok"))
    await site.becomes(engines[0], "UNHEALTHY")
    hops = "switchgear_departure_hop_seconds_count"

    async def confirmed() -> bool:
        return await told(site, hops, hop="ack") == 1

    await eventually(confirmed, "the proxy has confirmed endpoints without the engine")
    assert await told(site, hops, hop="decide") == 1
    assert await told(site, hops, hop="push") == 1
    assert await told(site, hops, hop="news_to_ack") == 1
    assert await told(site, "switchgear_engine_departures_total", engine="e0") == 1
    assert await told(site, "switchgear_engine_departures_total", engine="e1") == 0
    await engines[0].heal()
    await site.becomes(engines[0], "HEALTHY")

    async def settled() -> bool:
        return await told(site, hops, hop="last_request") == 1

    await eventually(settled, "the last request is known once the engine is back")
    await load.end()

    async def counted() -> bool:
        good = len(load.outcomes) - len(load.failed)
        return await told(site, "switchgear_attempts_total", outcome="success") >= good

    await eventually(counted, "every good answer was told of")
    seen = await scraped(site)
    calls, retries = seen("switchgear_attempts_total"), seen("switchgear_retries_total")
    assert calls == seen("switchgear_requests_total") - seen("switchgear_requests_refused_total") + retries
    assert seen("switchgear_attempt_gpu_seconds_total", outcome="success") > 0
