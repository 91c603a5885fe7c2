"""Every network fault affects its targets only, and ends when reverted."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from chaos.faults.actions import ChangeLoad, ShapeLink
from chaos.faults.bandwidth import BandwidthFault
from chaos.faults.black_hole import BlackHoleFault
from chaos.faults.fault import Fault
from chaos.faults.latency_fault import LatencyFault
from chaos.faults.loss_fault import LossFault
from chaos.faults.partition import PartitionFault
from chaos.faults.reset import ResetFault
from chaos.faults.slow_proxy import SlowProxyFault
from chaos.lab.injectors import link_injector
from chaos.lab.injectors.link_injector import LinkInjector, link_names
from chaos.lab.lab_handles import EngineHandle, InjectionError, LabHandles, ProxyHandle
from chaos.netem.netem_control import NetemControl
from chaos.netem.netem_link import NetemLink
from chaos.netem.packet_filter import unavailable_reason

LIMIT_S = 60.0
ENGINES = {"e0": "a", "e1": "b"}
PROXIES = {"p0": ("a", "127.0.0.2"), "p1": ("b", "127.0.0.3")}
OURS = "127.0.0.1"
LINKS = ("engine:e0", "engine:e1", "agent:e1", "xds:p0", "xds:p1")
DATA = b"x" * 500
QUESTIONS = 12
LOSES = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason() or "packets can be lost here")


class NoCallers:
    """A load without requests."""

    def pull(self, callers: ChangeLoad) -> None: ...

    def release(self, callers: ChangeLoad) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Two zones with an engine and a proxy each, and wires to everything; what is behind them says all again."""

    lever: LinkInjector
    site: LabHandles
    ports: Mapping[str, int]

    async def answer(self, source: str, link: str, *, patience_s: float = LIMIT_S) -> float | str:
        """Seconds that 12 requests on a new connection took, or their failure."""
        asked_s = time.monotonic()
        writer = None
        try:
            async with asyncio.timeout(patience_s):
                reader, writer = await asyncio.open_connection(OURS, self.ports[link], local_addr=(source, 0))
                for _ in range(QUESTIONS):
                    writer.write(DATA)
                    assert await reader.readexactly(len(DATA)) == DATA
        except TimeoutError:
            return "silence"
        except (ConnectionResetError, asyncio.IncompleteReadError):
            return "reset"
        finally:
            if writer is not None:
                writer.close()
        return time.monotonic() - asked_s

    async def rules(self) -> object:
        """Those that hold anywhere."""
        found: dict[str, object] = {}
        for control in (self.site.wires, self.site.wiretap):
            async with self.site.session.get(f"{control}/rules") as answer:
                found |= await answer.json()
        return found


@pytest.fixture
async def ground() -> AsyncIterator[Ground]:
    async def again(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(await asyncio.start_server(again, OURS, 0))
        to = (OURS, int(server.sockets[0].getsockname()[1]))
        links = {name: NetemLink(name, to, random.Random(1)) for name in LINKS}
        for link in links.values():
            await link.listen()
            stack.callback(link.close)
        controls = []
        for end in (("engine", "agent"), ("xds",)):
            own = {name: link for name, link in links.items() if name.startswith(end)}
            control = await stack.enter_async_context(TestServer(NetemControl(own).app()))
            controls.append(str(control.make_url("")).rstrip("/"))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        ports = {name: link.port for name, link in links.items()}
        site = LabHandles(
            engines={
                name: EngineHandle(
                    name=name,
                    zone=zone,
                    slots=8,
                    slowness=1.0,
                    pool="chat",
                    port=to[1],
                    seen_port=ports[f"engine:{name}"],
                    agent_port=to[1] if f"agent:{name}" in ports else None,
                )
                for name, zone in ENGINES.items()
            },
            proxies={
                name: ProxyHandle(name=name, zone=zone, demand=1.0, url="", admin="", address=address)
                for name, (zone, address) in PROXIES.items()
            },
            posts={},
            session=session,
            load=NoCallers(),
            control_plane="http://127.0.0.1:1",
            wires=controls[0],
            wiretap=controls[1],
            link_ports=ports,
        )
        yield Ground(lever=LinkInjector(site), site=site, ports=ports)


@pytest.mark.parametrize(
    ("fault", "least_s"),
    [
        # A round trip for the connection and one for each of 12 requests.
        (LatencyFault(delay="20ms"), 0.52),
        # TCP repeats a lost packet after 0.2 s, and waits twice as long each time it is lost again.
        pytest.param(LossFault(percent=10), 0.2, marks=LOSES),
        # 12 requests of 500 bytes.
        (BandwidthFault(bytes_per_second=6000), 1.0),
    ],
    ids=lambda one: one.kind if isinstance(one, Fault) else "",
)
async def test_slow_link_fault_takes_effect_and_heals(ground: Ground, fault: Fault, least_s: float) -> None:
    (pull,) = fault.actions("e0")

    await ground.lever.inject(pull)
    bitten: float | str = 0.0
    # A random fault misses all of 24 packets in 10 % of the runs, and never 30 times in a row.
    for _ in range(30 if isinstance(fault, LossFault) else 1):
        bitten = await ground.answer("127.0.0.2", "engine:e0")
        if not isinstance(bitten, float) or bitten >= least_s:
            break
    spared = await ground.answer("127.0.0.2", "engine:e1")
    await ground.lever.revert(pull)

    assert isinstance(bitten, float)
    assert bitten >= least_s
    assert isinstance(spared, float)
    assert isinstance(await ground.answer("127.0.0.2", "engine:e0"), float)
    assert await ground.rules() == {}


@pytest.mark.parametrize(
    ("fault", "comes_to"), [pytest.param(BlackHoleFault(), "silence", marks=LOSES), (ResetFault(), "reset")]
)
async def test_cut_link_fault_takes_effect_and_heals(ground: Ground, fault: Fault, comes_to: str) -> None:
    (pull,) = fault.actions("e0")
    assert ground.lever.refusal(pull) == ""

    await ground.lever.inject(pull)
    bitten = await ground.answer("127.0.0.2", "engine:e0", patience_s=0.5 if comes_to == "silence" else LIMIT_S)
    spared = await ground.answer("127.0.0.2", "engine:e1")
    await ground.lever.revert(pull)

    assert bitten == comes_to
    assert isinstance(spared, float)
    assert isinstance(await ground.answer("127.0.0.2", "engine:e0"), float)
    assert await ground.rules() == {}


@LOSES
async def test_network_partition_isolates_a_zone(ground: Ground) -> None:
    pulls = [pull for target in ("e1", "p1") for pull in PartitionFault().actions(target)]
    cut = [
        ("127.0.0.2", "engine:e1"),
        ("127.0.0.3", "engine:e0"),
        (OURS, "agent:e1"),
        ("127.0.0.3", "xds:p1"),
    ]
    whole = [("127.0.0.2", "engine:e0"), ("127.0.0.3", "engine:e1"), ("127.0.0.2", "xds:p0")]
    assert {ground.lever.refusal(pull) for pull in pulls} == {""}

    await asyncio.gather(*map(ground.lever.inject, pulls))
    bitten = await asyncio.gather(*(ground.answer(*one, patience_s=0.5) for one in cut))
    spared = await asyncio.gather(*(ground.answer(*one) for one in whole))
    await asyncio.gather(*map(ground.lever.revert, pulls))

    assert bitten == ["silence"] * len(cut)
    assert all(isinstance(one, float) for one in spared)
    healed = await asyncio.gather(*(ground.answer(*one) for one in cut))
    assert all(isinstance(one, float) for one in healed)


async def test_slow_proxy_gets_configuration_late(ground: Ground) -> None:
    slow = next(pull for pull in SlowProxyFault(config_delay="20ms").actions("p0") if isinstance(pull, ShapeLink))

    await ground.lever.inject(slow)
    taken_s = await ground.answer("127.0.0.2", "xds:p0")
    await ground.lever.revert(slow)

    assert isinstance(taken_s, float)
    assert taken_s >= 0.52
    assert await ground.rules() == {}


@LOSES
async def test_reverting_one_of_two_equal_actions_keeps_the_other(ground: Ground) -> None:
    (pull,) = BlackHoleFault().actions("e0")
    await ground.lever.inject(pull)
    await ground.lever.inject(pull)

    await ground.lever.revert(pull)
    assert await ground.answer("127.0.0.2", "engine:e0", patience_s=0.3) == "silence"
    await ground.lever.revert(pull)
    await ground.lever.revert(pull)
    assert await ground.rules() == {}


async def test_missing_target_is_skipped_and_missing_link_refused(ground: Ground) -> None:
    (missing,) = BlackHoleFault().actions("e0")
    bare = LinkInjector(replace(ground.site, link_ports={}, control_plane=""))

    assert bare.refusal(missing) == "no netem link for engine:e0"
    agentless = ShapeLink(end="agent", target="e0", black_hole=True)
    unsteered = ShapeLink(end="xds", target="p0", black_hole=True)
    for pull in (agentless, unsteered):
        assert bare.refusal(pull) == ""
        await bare.inject(pull)
        await bare.revert(pull)
    assert await ground.rules() == {}


async def test_without_packet_filter_only_loss_is_refused(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_injector, "unavailable_reason", lambda: "only root may")
    assert ground.lever.refusal(*BlackHoleFault().actions("e0")) == "only root may"
    assert ground.lever.refusal(*LossFault(percent=1).actions("e0")) == "only root may"
    assert ground.lever.refusal(*LatencyFault().actions("e0")) == ""


async def test_failed_link_rule_raises(ground: Ground) -> None:
    lever = LinkInjector(
        replace(ground.site, link_ports={"engine:e7": 1}, engines={"e7": ground.site.engines["e0"]})
    )

    with pytest.raises(InjectionError, match="unknown link 'engine:e7'"):
        await lever.inject(ShapeLink(end="engine", target="e7", black_hole=True))


def test_zone_links_are_those_between_zones() -> None:
    zones = {"p0": "a", "p1": "b"}
    own, apart = PartitionFault().actions("p1")

    assert isinstance(own, ShapeLink)
    assert isinstance(apart, ShapeLink)
    assert link_names(own, ENGINES, zones) == ("xds:p1",)
    assert link_names(apart, ENGINES, zones) == ("engine:e0",)
