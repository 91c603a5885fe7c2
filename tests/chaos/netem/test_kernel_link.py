"""Cables of the kernel's own: what is asked of it, and where it may be asked, that it does it."""

import asyncio
import os
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from chaos.netem.__main__ import serve
from chaos.netem.kernel_link import (
    MOST,
    NAMESPACES,
    KernelLink,
    KernelLinkError,
    netem_commands,
    remove_stale_namespaces,
    stale_namespaces,
    unavailable_reason,
    veth_ends,
)
from chaos.netem.link_rules import LinkRule
from chaos.netem.netem_link import NetemLink

LINK = "engine:e0"
NOBODY = 4_000_000_000
"""No process has this number: it is above the kernel's highest."""


def test_links_of_one_process_have_distinct_names_and_networks() -> None:
    laid = [veth_ends(4_194_303, number) for number in range(MOST + 1)]

    assert len({one.near_address.rpartition(".")[2] + one.near_address for one in laid}) == len(laid)
    assert len(
        {one.namespace for one in laid} | {one.near for one in laid} | {one.far for one in laid}
    ) == 3 * len(laid)
    # The kernel takes names of devices up to so long.
    assert max(len(one.near) for one in laid) <= 15


def test_netem_commands_are_symmetric_with_added_jitter() -> None:
    one = veth_ends(7, 1)
    asked = netem_commands(one, latency_s=0.1, jitter_s=0.02, loss_percent=2.5)

    assert [" ".join(command) for command in asked] == [
        "tc qdisc replace dev swg7n1 root netem delay 110000us 10000us loss 2.5%",
        "tc -n swg-7-1 qdisc replace dev swg7f1 root netem delay 110000us 10000us loss 2.5%",
    ]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of ``tc`` calls, one a line; it refuses all while a file ``refuse`` exists next to it."""
    log, refuse = tmp_path / "log", tmp_path / "refuse"
    script = f'#!/bin/sh\necho "tc $*" >> {log}\nif [ -e {refuse} ]; then echo no such thing >&2; exit 2; fi\n'
    (tmp_path / "tc").write_text(script, encoding="utf-8")
    (tmp_path / "tc").chmod(0o755)
    log.touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return log


async def test_kernel_link_applies_only_rules_for_all_peers(asked: Path) -> None:
    cable = KernelLink(3)
    rules = {
        "all": LinkRule(links=(LINK,), latency_s=0.1, loss_percent=50, bytes_per_s=100.0),
        "more": LinkRule(links=(LINK, "engine:e1"), loss_percent=50),
        "some": LinkRule(links=(LINK,), sources=("127.0.0.2",), latency_s=0.5),
        "other": LinkRule(links=("engine:e1",), latency_s=0.5),
    }

    left = await cable.carry(rules, LINK)
    again = await cable.carry(rules, LINK)
    await cable.carry({}, LINK)

    assert left == again
    assert left["all"] == LinkRule(links=(LINK,), bytes_per_s=100.0)
    assert left["more"] == LinkRule(links=(LINK, "engine:e1"))
    assert (left["some"], left["other"]) == (rules["some"], rules["other"])
    expected = [
        *netem_commands(veth_ends(os.getpid(), 3), latency_s=0.1, jitter_s=0.0, loss_percent=75.0),
        *netem_commands(veth_ends(os.getpid(), 3), latency_s=0.0, jitter_s=0.0, loss_percent=0.0),
    ]
    assert asked.read_text(encoding="utf-8").splitlines() == [" ".join(command) for command in expected]


async def test_kernel_link_is_reset_after_a_refused_command(asked: Path) -> None:
    cable, rules = KernelLink(3), {"all": LinkRule(links=(LINK,), latency_s=0.1)}
    (asked.parent / "refuse").touch()

    with pytest.raises(KernelLinkError, match="no such thing"):
        await cable.carry(rules, LINK)
    (asked.parent / "refuse").unlink()
    await cable.carry({}, LINK)

    # The first was refused, so it may be as bad as it was to be.
    assert [line.split("delay")[1] for line in asked.read_text(encoding="utf-8").splitlines()] == [
        " 100000us 0us loss 0%",
        " 0us 0us loss 0%",
        " 0us 0us loss 0%",
    ]


def test_stale_namespaces_are_those_of_dead_processes(tmp_path: Path) -> None:
    for name in (f"swg-{NOBODY}-0", f"swg-{NOBODY}-1", f"swg-{os.getpid()}x-0", "theirs", "swg-1"):
        (tmp_path / name).touch()

    assert stale_namespaces(tmp_path) == (f"swg-{NOBODY}-0", f"swg-{NOBODY}-1")
    assert stale_namespaces(tmp_path / "missing") == ()


async def test_kernel_link_number_is_reusable_at_once() -> None:
    await _skip_unless_allowed(netem=False)
    for _ in range(5):
        async with KernelLink(0) as cable:
            cable.listener.close()
            near = veth_ends(os.getpid(), 0).near
        assert near not in {name for _, name in socket.if_nameindex()}


async def _skip_unless_allowed(*, netem: bool) -> None:
    if why := await unavailable_reason(netem=netem):
        pytest.skip(why)


@asynccontextmanager
async def across() -> AsyncIterator[tuple[NetemLink, KernelLink]]:
    """A link over a cable to a server that says everything again."""

    async def again(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(await asyncio.start_server(again, "127.0.0.1", 0))
        cable = await stack.enter_async_context(KernelLink(0))
        far = NetemLink("far", ("127.0.0.1", server.sockets[0].getsockname()[1]), random.Random(1))
        await far.listen(cable.listener)
        stack.callback(far.close)
        near = NetemLink(LINK, cable.to, random.Random(1))
        await near.listen()
        stack.callback(near.close)
        yield near, cable


async def echo(link: NetemLink, questions: int = 1) -> float:
    """Seconds that ``count`` requests on one new connection took."""
    asked_s = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    async with asyncio.timeout(60):
        for _ in range(questions):
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
    writer.close()
    return time.monotonic() - asked_s


async def test_bytes_cross_a_kernel_link_and_it_is_removed() -> None:
    await _skip_unless_allowed(netem=False)
    mine = veth_ends(os.getpid(), 0).namespace

    async with across() as (link, _):
        await echo(link)
        assert (NAMESPACES / mine).exists()
    assert not (NAMESPACES / mine).exists()


async def left_by_nobody() -> Path:
    left = NAMESPACES / f"swg-{NOBODY}-0"
    adding = await asyncio.create_subprocess_exec("ip", "netns", "add", left.name)
    assert await adding.wait() == 0
    return left


async def test_namespaces_of_killed_processes_are_removed() -> None:
    await _skip_unless_allowed(netem=False)
    left = await left_by_nobody()

    await asyncio.gather(remove_stale_namespaces(), remove_stale_namespaces(), remove_stale_namespaces())
    assert not left.exists()


async def test_unavailable_kernel_link_is_reported_despite_leftovers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await _skip_unless_allowed(netem=False)
    await left_by_nobody()
    try:
        with monkeypatch.context() as nowhere:
            nowhere.setenv("PATH", "")
            assert "ip not found" in await serve({LINK: ("127.0.0.1", 1)}, 0, kernel=True)
    finally:
        await remove_stale_namespaces()


async def test_kernel_latency_and_loss_take_effect_and_heal() -> None:
    await _skip_unless_allowed(netem=True)
    async with across() as (link, cable):
        await cable.carry({"late": LinkRule(links=(LINK,), latency_s=0.05)}, LINK)
        assert await echo(link, 4) >= 0.5  # a round trip for the connection and one for each question
        # TCP repeats what is lost after 0.2 s, and waits twice as long each time it is lost again.
        await cable.carry({"lossy": LinkRule(links=(LINK,), loss_percent=15)}, LINK)
        assert any([await echo(link, 12) >= 0.2 for _ in range(12)])
        await cable.carry({}, LINK)
        await echo(link)
