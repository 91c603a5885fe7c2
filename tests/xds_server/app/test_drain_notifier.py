"""Agents of draining engines get one message for simultaneous ACKs; other agents get none."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from engine.report import DrainRequest, EngineReport, ReportSource, Verdict
from xds_server.app.drain_notifier import NOTIFY_WITHIN_S, DrainNotifier
from xds_server.decide.decisions import Health
from xds_server.model.drain_progress import DrainProgress
from xds_server.model.fleet import EngineId
from xds_server.model.snapshot import Snapshot, resource, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.model.view import View

KEY = EngineId("p", "e")


class Recorder:
    """A notifier with recorded messages; every proxy has accepted ``acked``."""

    def __init__(self) -> None:
        self.sent: list[tuple[EngineId, DrainProgress]] = []
        self.acked: tuple[tuple[View, str], ...] = ()
        self.notifier = DrainNotifier(
            lambda _type_url, _name: self.acked, lambda key, progress: self.sent.append((key, progress))
        )

    def report(self, *, draining: bool) -> None:
        self.notifier.on_report(
            EngineReport(
                pool=KEY.pool,
                engine=KEY.engine,
                verdict=Verdict.DRAINING,
                evidence=(),
                source=ReportSource.AGENT,
                observed_at_s=1.0,
                drain=DrainRequest() if draining else None,
            )
        )

    def publish(self) -> Mapping[View, Snapshot]:
        served = {View(): snapshot([resource(ENDPOINT, KEY.pool, b"without it")])}
        decisions: Any = SimpleNamespace(engines={KEY: SimpleNamespace(health=Health.DRAINING)})
        self.notifier.on_published(decisions, served)
        return served


async def settle() -> None:
    await asyncio.sleep(4 * NOTIFY_WITHIN_S)


async def test_simultaneous_acks_are_one_message() -> None:
    found = Recorder()
    found.report(draining=True)
    served = found.publish()
    await settle()
    assert [progress.proxies_acknowledged for _, progress in found.sent] == [0]
    version = served[View()].of(ENDPOINT)[KEY.pool].version
    found.sent.clear()
    found.acked = ((View(), version), (View(), version))
    found.notifier.on_ack(ENDPOINT)
    found.notifier.on_ack(ENDPOINT)
    await settle()
    assert found.sent == [(KEY, DrainProgress(proxies_total=2, proxies_acknowledged=2))]


async def test_unrelated_acks_send_no_drain_progress() -> None:
    found = Recorder()
    found.report(draining=False)
    found.publish()
    found.notifier.on_ack(ENDPOINT)
    await settle()
    found.report(draining=True)
    found.publish()
    await settle()
    found.sent.clear()
    found.notifier.on_ack(CLUSTER)
    await settle()
    assert found.sent == []
