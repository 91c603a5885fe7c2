"""A scrape is complete, and does not block other tasks."""

import asyncio

import pytest

from xds_server.metrics import metric_registry
from xds_server.metrics.control_metrics import ProxyMetrics
from xds_server.metrics.fleet_metrics import PoolMetrics
from xds_server.metrics.metric_registry import Metrics


def without_process(page: bytes) -> list[bytes]:
    return [line for line in page.splitlines() if b"process_" not in line]


async def turns_of_others(metrics: Metrics) -> tuple[bytes, int]:
    """The page, and how often another task ran meanwhile."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    page = await metrics.page()
    running.cancel()
    return page, turns


async def test_metrics_page_yields_to_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    metrics.nacks.labels(type="RDS").inc()
    metrics.observe(lambda: [PoolMetrics.pool_slots.family({("a",): 1.0, ("b",): 2.0})])
    monkeypatch.setattr(metric_registry, "SLICE_S", 0.0)
    page, turns = await turns_of_others(metrics)
    assert without_process(page) == without_process(metrics.text())
    assert b'switchgear_pool_slots{pool="b"} 2.0' in page
    assert turns >= len(list(metrics.registry.collect())) > 20


async def test_cheap_metrics_page_waits_for_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn takes as long as all that peers have ready."""
    monkeypatch.setattr(metric_registry, "SLICE_S", 60.0)
    _, turns = await turns_of_others(Metrics())
    assert turns == 0


async def test_metrics_page_is_consistent() -> None:
    metrics = Metrics()
    page = asyncio.create_task(metrics.page())
    await asyncio.sleep(0)  # it has begun
    metrics.reconcile_failures.inc()
    assert b"switchgear_reconcile_failures_total 0.0" in await page


def test_counter_is_per_server_and_starts_at_zero() -> None:
    one, other = Metrics(), Metrics()
    one.nacks.labels(type="RDS").inc()
    name = ProxyMetrics.nacks.name
    assert one.registry.get_sample_value(name, {"type": "RDS"}) == 1
    assert other.registry.get_sample_value(name, {"type": "RDS"}) == 0


def test_metric_family_follows_its_declaration() -> None:
    family = PoolMetrics.pool_slots.family({("a",): 2.0})
    assert (family.name, family.documentation) == (PoolMetrics.pool_slots.name, PoolMetrics.pool_slots.help)
    assert [(one.labels, one.value) for one in family.samples] == [({"pool": "a"}, 2.0)]
