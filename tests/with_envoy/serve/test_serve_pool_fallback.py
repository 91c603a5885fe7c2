"""Fallback to another pool while the first one fails or sheds: real Envoys, engines and control plane."""

import time
from typing import Any

import pytest

from chaos.fake_engine import EngineErrorAfterWork, EngineGrayFailure, EngineShed
from chaos.history.request_outcomes import OutcomeReason, RequestOutcome
from tests.with_envoy.serve.conftest import Site, eventually

pytestmark = pytest.mark.envoy

RATE_PER_S = 10.0
SETTLED_S = 2.0


async def start_site(site: Site) -> None:
    """A pool of four and a fallback of two, with default policies."""
    await site.start_engines(6, slots=8)
    site.write(
        "chat.yaml",
        site.pool("chat", site.engines[:4], slotsPerEngine=8),
        site.pool("small", site.engines[4:], slotsPerEngine=8),
        site.route(pool="chat", fallback="small"),
    )
    await site.serve()
    await site.envoy()
    await site.answered()


def good_share(outcomes: list[RequestOutcome]) -> float:
    return sum(one.reason is OutcomeReason.OK for one in outcomes) / len(outcomes)


@pytest.mark.parametrize(
    "fault", [EngineErrorAfterWork(), EngineShed(), EngineGrayFailure()], ids=["fails", "sheds", "gray"]
)
async def test_fallback_serves_while_the_pool_fails(site: Site, fault: Any) -> None:
    await start_site(site)
    load = site.load(RATE_PER_S)
    await load.more(20)
    for engine in site.engines[:4]:
        await engine.set_fault(fault)
    began = time.monotonic()
    await load.more(160)
    after = [one for one in load.outcomes if one.arrived_at_s > began + SETTLED_S]
    assert good_share(after) >= 0.95
    for engine in site.engines[:4]:
        await engine.heal()
    before = sum(engine.book.totals().finished for engine in site.engines[:4])

    def back() -> bool:
        return sum(engine.book.totals().finished for engine in site.engines[:4]) > before + 20

    await eventually(back, "the pool serves again")
