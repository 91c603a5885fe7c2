"""What telemetry faults order of the wiretap, for whom, and that it is taken back."""

from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from chaos.faults.config_rejected import ConfigRejected
from chaos.faults.fault import Fault
from chaos.faults.telemetry_lies import TelemetryLies
from chaos.faults.telemetry_lost import TelemetryLost
from chaos.lab.levers.telemetry import WiretapLever
from chaos.lab.site import LeverError
from chaos.wiretap.desk import Desk
from chaos.wiretap.orders import Treatment
from tests.chaos.faults.small_lab import Struck, site

WELL = Treatment()


class Told:
    """A tap that only remembers what it was told."""

    def __init__(self) -> None:
        self.treatment = WELL

    def obey(self, treatment: Treatment) -> None:
        self.treatment = treatment


@pytest.mark.parametrize(
    ("fault", "treatment"),
    [
        (TelemetryLost(), Treatment(lost=True)),
        (TelemetryLies(), Treatment(says="all-failed")),
        (TelemetryLies(says="all-good"), Treatment(says="all-good")),
        (ConfigRejected(), Treatment(corrupt=frozenset({"eds"}))),
        (ConfigRejected(type="rds"), Treatment(corrupt=frozenset({"rds"}))),
    ],
)
async def test_a_fault_is_an_order_for_one_proxy_while_it_lasts(fault: Fault, treatment: Treatment) -> None:
    desk, p0, p1 = Desk(), Told(), Told()
    desk.taps |= {"p0": p0, "p1": p1}  # type: ignore[dict-item] # all that a desk asks of a tap
    async with TestServer(desk.with_pages(web.Application())) as server, aiohttp.ClientSession() as session:
        place = site(session, wiretap=str(server.make_url("")).rstrip("/"))
        struck, stranger = Struck(place, fault, "p1"), Struck(place, fault, "p9")

        await struck.pull()
        assert (p0.treatment, p1.treatment) == (WELL, treatment)
        await struck.release()
        assert (p0.treatment, p1.treatment) == (WELL, WELL)
        with pytest.raises(LeverError, match="there is no 'p9'"):
            await stranger.pull()
        await stranger.release()


async def test_without_a_wiretap_nothing_can_be_lost() -> None:
    async with aiohttp.ClientSession() as session:
        lever = WiretapLever(site(session))
        (pull,) = TelemetryLost().pulls("p0")

        assert "no proxy has a control plane" in lever.refusal(pull)
        lost = WiretapLever(replace(site(session), wiretap="http://127.0.0.1:1"))
        with pytest.raises(LeverError, match="/orders/pull-1"):
            await lost.pull(pull)
