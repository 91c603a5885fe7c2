"""Telemetry faults set rules on the xDS tap, and remove them."""

from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from chaos.faults.config_rejected import ConfigRejectedFault
from chaos.faults.fault import Fault
from chaos.faults.telemetry_lies import TelemetryLiesFault
from chaos.faults.telemetry_lost import TelemetryLostFault
from chaos.lab.injectors.tap_injectors import XdsTapInjector
from chaos.lab.lab_handles import InjectionError
from chaos.xds_tap.tap_control import TapControl
from chaos.xds_tap.tap_rules import StreamTreatment
from tests.chaos.faults.small_lab import InjectedFault, site

WELL = StreamTreatment()


class FakeTap:
    """A tap that only records its rules."""

    def __init__(self) -> None:
        self.treatment = WELL

    def obey(self, treatment: StreamTreatment) -> None:
        self.treatment = treatment


@pytest.mark.parametrize(
    ("fault", "treatment"),
    [
        (TelemetryLostFault(), StreamTreatment(lost=True)),
        (TelemetryLiesFault(), StreamTreatment(says="all-failed")),
        (TelemetryLiesFault(says="all-good"), StreamTreatment(says="all-good")),
        (ConfigRejectedFault(), StreamTreatment(corrupt=frozenset({"eds"}))),
        (ConfigRejectedFault(type="rds"), StreamTreatment(corrupt=frozenset({"rds"}))),
    ],
)
async def test_telemetry_fault_sets_a_rule_for_one_proxy(fault: Fault, treatment: StreamTreatment) -> None:
    desk, p0, p1 = TapControl(), FakeTap(), FakeTap()
    desk.taps |= {"p0": p0, "p1": p1}  # type: ignore[dict-item] # all that a desk asks of a tap
    async with TestServer(desk.with_pages(web.Application())) as server, aiohttp.ClientSession() as session:
        place = site(session, wiretap=str(server.make_url("")).rstrip("/"))
        struck, stranger = InjectedFault(place, fault, "p1"), InjectedFault(place, fault, "p9")

        await struck.pull()
        assert (p0.treatment, p1.treatment) == (WELL, treatment)
        await struck.release()
        assert (p0.treatment, p1.treatment) == (WELL, WELL)
        with pytest.raises(InjectionError, match="unknown proxy 'p9'"):
            await stranger.pull()
        await stranger.release()


async def test_telemetry_fault_is_refused_without_xds_tap() -> None:
    async with aiohttp.ClientSession() as session:
        lever = XdsTapInjector(site(session))
        (pull,) = TelemetryLostFault().actions("p0")

        assert "this lab has no control plane" in lever.refusal(pull)
        lost = XdsTapInjector(replace(site(session), wiretap="http://127.0.0.1:1"))
        with pytest.raises(InjectionError, match="/orders/pull-1"):
            await lost.inject(pull)
