"""Disks that are full or may not be written, names that are not found, clocks that jump: known behaviour."""

import asyncio
import contextlib
import errno
import json
import os
import resource
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from tests.eventually import eventually
from tests.hostile.conftest import LIMIT_S, POLICY, Server, killed, launched
from tests.hostile.sigkill_writers import version
from tests.xds_server.reconcile.fake_peers import Peers, accepted, running
from xds_server.app import persistence
from xds_server.diagnosis.conditions import of_file_problems
from xds_server.engine_health import address_store
from xds_server.engine_health.resolver import Resolver
from xds_server.ledger import operator_orders as ledger_orders
from xds_server.ledger.jsonl_writer import JsonlWriter, tail
from xds_server.ledger.operator_orders import Orders
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.fleet import EngineId
from xds_server.model.order import Order, OrderAction
from xds_server.rollout.history import digest_table, version_archive
from xds_server.rollout.history.version_archive import VersionArchive
from xds_server.rollout.last_good import LastGood, LastGoodStore
from xds_server.state import atomic_file
from xds_server.state.atomic_file import write_atomically
from xds_server.state.versioned_file import StoreError
from xds_server.state.write_failures import WriteFailures

SMALL = LastGood(texts={"a.yaml": "# 1\n"}, digest="1", proxies_by_role={}, saved_at_unix_s=1.0)
LARGE = LastGood(texts={"a.yaml": "# 2\n" * 100_000}, digest="2", proxies_by_role={}, saved_at_unix_s=2.0)


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Writing beyond it fails as it does on a full disk: in the middle of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_keeps_the_last_good_state(tmp_path: Path) -> None:
    store = LastGoodStore(tmp_path)
    store.save(SMALL)
    with no_file_longer_than(20_000), pytest.raises(StoreError):
        store.save(LARGE)
    assert store.read() == SMALL
    assert [path.name for path in tmp_path.iterdir()] == [store.path.name], "no half of a file is left"
    store.save(LARGE)
    assert store.read() == LARGE


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT, errno.EMFILE])
@pytest.mark.parametrize("step", ["fsync", "mkstemp", "replace"])
def test_disk_error_is_reported_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, step: str
) -> None:
    store = LastGoodStore(tmp_path)
    store.save(SMALL)

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        places = {"fsync": atomic_file.os, "mkstemp": atomic_file.tempfile, "replace": atomic_file.Path}
        patched.setattr(places[step], step, fail)
        with pytest.raises(StoreError, match=os.strerror(code)):
            store.save(LARGE)
    assert store.read() == SMALL
    assert [path.name for path in tmp_path.iterdir()] == [store.path.name]


def test_lines_refused_by_a_full_disk_leave_no_half_and_wait(tmp_path: Path) -> None:
    lines = JsonlWriter(tmp_path / "ledger.jsonl", 1 << 20)
    lines._append(['{"n":1}'])
    long = '{"n":2,"text":"' + "x" * 100 + '"}'
    with capture_logs() as told, no_file_longer_than(12):
        assert lines._append([long]) == [long]
    assert [one["event"] for one in told] == ["file.failed"]
    assert lines._append([long, '{"n":3}']) == ()
    assert tail(tmp_path / "ledger.jsonl") == ['{"n":1}', long, '{"n":3}']


async def newest(server: Server) -> tuple[int, str]:
    """Number of the newest version, and why it is not on disk."""

    def read() -> tuple[int, str]:
        with urllib.request.urlopen(f"http://{server.admin}/v1/history", timeout=LIMIT_S) as answer:
            history = json.loads(answer.read())
        return max((one["number"] for one in history["versions"]), default=0), history["failure"]

    return await asyncio.to_thread(read)


async def test_version_numbers_continue_after_a_full_disk_and_a_kill(tmp_path: Path) -> None:
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "chat.yaml").write_text(POLICY.format(connect=300))
    server = launched(tmp_path, "prlimit", f"--fsize={100 * 1024}")
    try:
        await eventually(lambda: _is_newest(server, 1), "the first version", LIMIT_S)
        for number in (2, 3):
            text = POLICY.format(connect=300 + number) + "# large\n" * 50_000
            (policies / "chat.tmp").write_text(text)
            (policies / "chat.tmp").replace(policies / "chat.yaml")
            await eventually(
                lambda number=number: _is_newest(server, number, "cannot write"), "it is unsaved", LIMIT_S
            )
    finally:
        killed(server)
    assert [path.name for path in (tmp_path / "state" / "history").glob("0*")] == ["00000001.json"]
    (policies / "chat.yaml").write_text(POLICY.format(connect=400))
    server = launched(tmp_path)
    try:
        await eventually(lambda: _is_newest(server, 4), "the next version", LIMIT_S)
    finally:
        killed(server)


async def _is_newest(server: Server, number: int, failure: str = "") -> bool:
    found, reason = await newest(server)
    assert found <= number
    return found == number and failure in reason


async def test_refused_writes_are_retried_once_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting for the next change: a confirmed version is served after a restart."""
    for module in (version_archive, persistence, ledger_orders):
        monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(persistence, "_LOOK_EACH_S", 0.01)
    state = tmp_path / "state"
    state.write_text("no folder")
    metrics = Metrics()
    disk = WriteFailures(metrics.store_failures.inc)
    history, store = VersionArchive(state / "history", disk=disk), LastGoodStore(state)
    given = Orders(state, clock=lambda: 0.0, disk=disk)
    publisher = SimpleNamespace(nack_policy=SimpleNamespace(rejections=lambda: ()))
    async with running(Peers()) as reconciler, asyncio.TaskGroup() as tasks:
        resolver = Resolver(lambda: None, refresh_s=60.0, lookup=lambda _: ["10.0.0.1"])
        resolver.want(frozenset({"engine-0"}))
        await resolver.refresh()
        entrusted = SimpleNamespace(certified=lambda: ())
        served = persistence.persist(store, publisher, reconciler, entrusted, resolver, disk=disk)  # type: ignore[arg-type]
        running_tasks = [tasks.create_task(one) for one in (history.run(), given.run(), served)]
        with capture_logs() as told:
            reconciler.offer(accepted("p"))
            history.add(version(1))
            given.give(
                Order(engine=EngineId("p", "e0"), action=OrderAction.DRAIN, until_s=60.0, reason="new driver")
            )
            words = {"history.failed", "orders.not_kept", "store.failed"}
            await eventually(lambda: words <= {one["event"] for one in told}, "words about the disk", LIMIT_S)
            failures = metrics.store_failures._value.get()
            await eventually(lambda: metrics.store_failures._value.get() > failures + 3, "more tries", LIMIT_S)
        events = [one["event"] for one in told]
        assert (events.count("history.failed"), events.count("orders.not_kept")) == (1, 1), (
            "a line each, not a try"
        )
        told_of = {Path(one.file).name: one for one in disk.file_problems()}
        assert {"last-good.json", "orders.json", "history", "addresses.json"} <= set(told_of)
        found = list(of_file_problems(list(told_of.values()), 0.0))
        assert {(one.code, one.severity) for one in found} == {("SG234", "critical")}
        assert all("cannot write" in one.sentence for one in told_of.values())
        state.unlink()
        names = ("last-good.json", "orders.json", "history/00000001.json", "addresses.json")
        await eventually(lambda: all((state / name).is_file() for name in names), "all is written", LIMIT_S)
        await eventually(lambda: not list(disk.file_problems()), "the problem is cleared", LIMIT_S)
        for task in running_tasks:
            task.cancel()
    assert LastGoodStore(state).read() is not None
    assert address_store.read(state) == {"engine-0": "10.0.0.1"}


def test_order_stays_in_force_when_persistence_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    orders = Orders(tmp_path / "file" / "state", clock=lambda: 0.0)
    key = EngineId("chat", "e0")
    orders.give(Order(engine=key, action=OrderAction.DRAIN, until_s=60.0, reason="new driver"))
    orders._save(orders._as_kept())
    assert key in orders.active(1.0)


def test_a_file_is_for_this_user_only_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, b"content")
    assert path.read_bytes() == b"content"
    assert path.stat().st_mode & 0o777 == 0o600


def test_pipe_in_place_of_the_state_is_reported_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "last-good.json")
    with pytest.raises(StoreError, match="not a regular file"):
        LastGoodStore(tmp_path).read()


def test_pipes_in_place_of_other_state_files_do_not_block(tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.mkdir()
    for path in (tmp_path / address_store.FILE_NAME, history / digest_table.FILE_NAME, history / "00000001.json"):
        os.mkfifo(path)
    with pytest.raises(StoreError, match="not a regular file"):
        address_store.read(tmp_path)
    assert digest_table.read(history) == {}
    kept = VersionArchive(history)
    kept.restore()
    assert (kept.versions, kept.damaged) == ((), ("00000001.json",))


async def test_failed_address_store_is_retried_after_the_store_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept_s: list[float] = []

    async def sleep(seconds: float) -> None:
        if len(slept_s) == 3:
            raise asyncio.CancelledError
        slept_s.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    (tmp_path / "state").write_text("no folder")
    known = SimpleNamespace(remembered={}, addresses={"engine-0": "10.0.0.1"})
    with pytest.raises(asyncio.CancelledError):
        await persistence._keep_addresses(LastGoodStore(tmp_path / "state"), known, WriteFailures())  # type: ignore[arg-type]
    assert slept_s == [persistence._LOOK_EACH_S, atomic_file.RETRY_S, atomic_file.RETRY_S]


@pytest.mark.parametrize("jump_s", [-86_400.0, -1.0, 3_600.0, 10 * 86_400.0])
def test_order_expiry_survives_wall_clock_jumps(tmp_path: Path, jump_s: float) -> None:
    """While the process runs only the monotonic clock counts; over a restart the wall clock does."""
    wall_s, now_s = 1_000_000.0, 50.0
    orders = Orders(tmp_path, clock=lambda: now_s, wall=lambda: wall_s)
    key = EngineId("chat", "e0")
    orders.give(Order(engine=key, action=OrderAction.DRAIN, until_s=now_s + 600.0, reason="new driver"))
    wall_s += jump_s
    assert key in orders.active(now_s + 599.0)
    assert key not in orders.active(now_s + 601.0)
    orders._save(orders._as_kept())
    again = Orders(tmp_path, clock=lambda: 5.0, wall=lambda: wall_s + 10.0)
    again.restore()
    (kept,) = again.active(5.0).values()
    assert kept.until_s == pytest.approx(5.0 + 590.0)


async def test_unresolved_dns_name_keeps_its_last_address() -> None:
    answers: list[list[str] | OSError] = [["10.0.0.1"], OSError("no name server"), ["10.0.0.2"]]

    def lookup(_: str) -> list[str]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    changes: list[None] = []
    resolver = Resolver(lambda: changes.append(None), refresh_s=60.0, lookup=lookup)
    resolver.want(frozenset({"engine-0"}))
    seen = []
    for _ in range(3):
        await resolver.refresh()
        seen.append(resolver.addresses["engine-0"])
        await asyncio.sleep(0)
    assert seen == ["10.0.0.1", "10.0.0.1", "10.0.0.2"]
    assert len(changes) == 2


async def test_unresolved_dns_name_after_restart_uses_the_stored_address(tmp_path: Path) -> None:
    """Otherwise pools with DNS names would be empty, and proxies would lose their engines."""
    address_store.save(tmp_path, {"engine-0": "10.0.0.1", "engine-1": "10.0.0.2"})
    found = {"engine-1": ["10.0.0.9"]}

    def lookup(name: str) -> list[str]:
        if name not in found:
            raise OSError("no name server")
        return found[name]

    resolver = Resolver(lambda: None, refresh_s=60.0, lookup=lookup)
    resolver.remembered = address_store.read(tmp_path)
    resolver.want(frozenset({"engine-0", "engine-1"}))
    await resolver.refresh()
    assert resolver.addresses == {"engine-0": "10.0.0.1", "engine-1": "10.0.0.9"}, "who answers is believed"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": "switchgear-addresses/2", "addresses": {}}', '{"addresses": {"a": "no"}}']
)
def test_invalid_stored_addresses_are_reported(tmp_path: Path, text: str) -> None:
    assert address_store.read(tmp_path) == {}
    (tmp_path / address_store.FILE_NAME).write_text(text)
    with pytest.raises(StoreError, match=r"addresses\.json"):
        address_store.read(tmp_path)
    (tmp_path / address_store.FILE_NAME).write_text(
        '{"format": "switchgear-addresses/1", "addresses": {"a": "no"}}'
    )
    with pytest.raises(StoreError, match="damaged"):
        address_store.read(tmp_path)
