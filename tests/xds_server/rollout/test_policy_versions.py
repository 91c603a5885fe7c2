"""Which policies are in force: files, an applied version, or those of an earlier run."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from policies.findings import PolicyError
from policies.model import PolicySet
from policies.origin import Origin
from tests.xds_server.reconcile.fake_peers import Peers, accepted, refused, text, until
from xds_server.admin.history_routes import add_history
from xds_server.admin_api.version_types import ApplyRequest, RollbackRequest
from xds_server.decide.diff.change import Change, ChangeKind
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.policy_state import AcceptedPolicies, PolicyState, ServingPolicies
from xds_server.reconcile.reconciler import Reconciler
from xds_server.rollout.history import version_archive
from xds_server.rollout.history.change_errors import RefusedChangeError, UnknownVersionError, UnusableTextsError
from xds_server.rollout.history.policy_version import PolicyVersion, digest_of
from xds_server.rollout.history.version_archive import VersionArchive
from xds_server.rollout.policy_file_source import PolicyFiles
from xds_server.rollout.policy_versions import PolicyVersions


class Server:
    """A reconciler with its policy versions."""

    def __init__(self, folder: Path | None, source: str = "files") -> None:
        self.peers = Peers()
        self.events: list[Change] = []
        self.archive = VersionArchive(folder)
        self.reconciler = Reconciler(self.peers, Metrics(), on_adopted=self.adopted)
        self.flaws: tuple[PolicyError, ...] = ()
        self.gone: set[str] = set()
        """Pools that cannot be used."""
        self.ordered: list[str] = []
        self.changing = PolicyVersions(
            self.reconciler,
            self.archive,
            source=source,
            tell=self.events.append,
            flaws=self.flaws_of,
            ordered=self.ordered.append,
        )
        self.changing.restore()

    def flaws_of(self, policies: PolicySet) -> tuple[PolicyError, ...]:
        gone = sorted(self.gone & policies.pools.keys())
        origin = Origin(file="q.yaml", line=1, column=1)
        return (*self.flaws, *(PolicyError(code="SG043", origin=origin, message=name) for name in gone))

    def adopted(self, serving: ServingPolicies) -> None:
        self.changing.on_adopted(serving)

    async def serves(self, *pools: str) -> None:
        await until(lambda: self.peers.pools == sorted(pools))

    @property
    def told(self) -> list[tuple[int, str, str, int]]:
        return [(one.number, one.source, one.by, one.restores) for one in self.changing.history().versions]


@contextlib.asynccontextmanager
async def serving(folder: Path | None = None, source: str = "files") -> AsyncIterator[Server]:
    server = Server(folder, source)
    tasks = [asyncio.create_task(server.reconciler.run()), asyncio.create_task(server.archive.run())]
    try:
        yield server
        newest = server.archive.newest
        await until(lambda: newest is None or server.archive.settled(newest.number))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def asked(*names: str, engines: int = 2, **rest: str | bool) -> ApplyRequest:
    return ApplyRequest(texts={f"{name}.yaml": text(name, engines=engines) for name in names}, **rest)  # type: ignore[arg-type]


async def test_applied_policies_become_a_version() -> None:
    async with serving() as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        done = await server.changing.apply(asked("p", "q", by="ann", reason="more room"))
        assert (done.state, done.version) == ("served", 2)
        assert server.ordered == [done.digest]
        await server.serves("p", "q")
        assert server.told == [(1, "files", "files", 0), (2, "applied", "ann", 0)]
        history = server.changing.history()
        assert [one.serving for one in history.versions] == [False, True]
        assert history.stands == 2
        assert not history.kept
        assert [(one.kind, one.before, one.after, one.reason) for one in server.events] == [
            (ChangeKind.POLICIES, "", "version 1", "from files"),
            (ChangeKind.POLICIES, "version 1", "version 2", "applied by ann: more room"),
        ]
        assert set(server.changing.texts(None).texts) == {"p.yaml", "q.yaml"}
        assert set(server.changing.texts(1).texts) == {"p.yaml"}


async def test_applied_policies_last_until_the_files_change() -> None:
    async with serving() as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        await server.changing.apply(asked("p", "q"))
        server.changing.offer(accepted("p"))  # touched, and the same
        await server.serves("p", "q")
        server.changing.offer(accepted("p", "r"))
        await server.serves("p", "r")
        assert server.changing.history().stands == 0
        assert [source for _, source, _, _ in server.told] == ["files", "applied", "files"]


@pytest.mark.parametrize("edited", [False, True])
async def test_applied_policies_survive_a_restart(tmp_path: Path, edited: bool) -> None:
    async with serving(tmp_path) as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        await server.changing.apply(asked("p", "q"))
    async with serving(tmp_path) as server:
        server.changing.offer(accepted("p", "r") if edited else accepted("p"))
        await server.serves(*(("p", "r") if edited else ("p", "q")))
        assert len(server.told) == (3 if edited else 2)  # a restart alone makes no version
        assert server.changing.history().stands == (0 if edited else 2)


async def test_damaged_applied_version_falls_back_to_files(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        await server.changing.apply(asked("p", "q"))
        await server.changing.apply(asked("p", "r"))
    (tmp_path / "00000003.json").write_text("{")
    async with serving(tmp_path) as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        assert server.changing.history().damaged == ("00000003.json",)


async def test_rollback_to_the_previous_or_a_numbered_version() -> None:
    async with serving() as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        await server.changing.apply(asked("p", "q"))
        done = await server.changing.rollback(RollbackRequest(by="bob"))
        assert (done.state, done.version) == ("served", 3)
        await server.serves("p")
        await server.changing.rollback(RollbackRequest(version=2))
        await server.serves("p", "q")
        assert server.told[2:] == [(3, "rollback", "bob", 1), (4, "rollback", "rollback", 2)]
        with pytest.raises(UnknownVersionError, match="no version 9"):
            await server.changing.rollback(RollbackRequest(version=9))


async def test_rollback_before_the_first_version_is_rejected() -> None:
    async with serving() as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        with pytest.raises(UnknownVersionError, match="no earlier version"):
            await server.changing.rollback(RollbackRequest())


async def test_touched_files_drop_held_policies() -> None:
    async with serving() as server:
        server.changing.offer(accepted("p", engines=8))
        await server.serves("p")
        assert (await server.changing.apply(asked("p", engines=1))).state == "held"
        server.changing.offer(accepted("p", engines=8))  # other comments, say
        await until(lambda: server.reconciler.source_state.state == "accepted")
        done = await server.changing.apply(asked("p", "q", engines=8, by="ann"))
        assert (done.state, done.version) == ("served", 2)


async def test_refused_files_drop_held_policies() -> None:
    async with serving() as server:
        server.changing.offer(accepted("p", engines=8))
        await server.serves("p")
        assert (await server.changing.apply(asked("p", engines=1))).state == "held"
        server.gone = {"p"}
        server.changing.offer(accepted("p", engines=8))
        assert server.reconciler.source_state.state == "refused"
        server.gone = set()
        assert (await server.changing.apply(asked("p", "q", engines=8))).state == "served"


async def test_shrinking_policies_are_held_and_released() -> None:
    async with serving() as server:
        server.changing.offer(accepted("p", "q", "r"))
        await server.serves("p", "q", "r")
        done = await server.changing.apply(asked("p", by="ann"))
        assert done.state == "held"
        assert "would remove" in done.reason
        assert len(server.told) == 1
        assert not server.reconciler.release_shrink()
        await server.serves("p")
        assert server.told[1:] == [(2, "applied", "ann", 0)]


async def test_unusable_apply_changes_nothing() -> None:
    async with serving() as server:
        with pytest.raises(RefusedChangeError, match="not been read yet"):
            await server.changing.apply(asked("q"))
        server.changing.offer(accepted("p"))
        await server.serves("p")
        with pytest.raises(UnusableTextsError) as error:
            await server.changing.apply(ApplyRequest(texts={"a.yaml": "kind: ["}))
        assert str(error.value.errors[0].origin).startswith("a.yaml:1")
        for said in ("two\nlines", "x" * 501):
            with pytest.raises(RefusedChangeError, match="one line"):
                await server.changing.apply(asked("q", by=said))
        with pytest.raises(RefusedChangeError, match="file name must be one line"):
            await server.changing.apply(ApplyRequest(texts={"a\x1b[2J": text("q")}))
        with pytest.raises(RefusedChangeError, match="exceed 16 MiB"):
            await server.changing.apply(ApplyRequest(texts={"a": "#" * (16 * 1024 * 1024)}))
        assert (await server.changing.apply(asked("p", "q", dry_run=True))).state == "judged"
        assert len(server.told) == 1
        assert server.peers.pools == ["p"]


async def test_refused_files_keep_the_applied_version() -> None:
    async with serving() as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        await server.changing.apply(asked("p", "q"))
        server.changing.offer(refused())
        assert server.reconciler.source_state.state == "refused"
        assert server.peers.pools == ["p", "q"]
        assert server.changing.history().stands == 2
        server.changing.offer(accepted("p"))
        await server.serves("p", "q")
        server.changing.offer(refused())
        server.changing.offer(accepted("p", "r"))
        await server.serves("p", "r")


async def test_apply_is_rejected_in_kubernetes_mode() -> None:
    async with serving(source="kubernetes") as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        with pytest.raises(RefusedChangeError, match="kubectl"):
            await server.changing.apply(asked("q"))
        with pytest.raises(RefusedChangeError, match="kubectl"):
            await server.changing.rollback(RollbackRequest())
        assert server.told == [(1, "kubernetes", "kubernetes", 0)]


@contextlib.asynccontextmanager
async def port(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    app = web.Application(client_max_size=64 * 1024)
    add_history(app, server.changing)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            yield session
    finally:
        await runner.cleanup()


async def test_http_refusals_have_status_and_reason() -> None:
    async with serving() as server, port(server) as session:
        server.changing.offer(accepted("p"))
        await server.serves("p")

        async def post(path: str, **rest: object) -> tuple[int, dict[str, object]]:
            async with session.post(path, **rest) as answer:  # type: ignore[arg-type]
                return answer.status, await answer.json()

        big = {"a.yaml": text("p"), "b.yaml": text("q") + "#" * 100_000}  # more than the port takes otherwise
        status, said = await post("/v1/apply", json={"texts": big})
        assert (status, said["state"]) == (200, "served")
        assert (await post("/v1/apply", json={"texts": {"a": "kind: ["}}))[0] == 422
        assert (await post("/v1/apply", json={"texts": 3}))[0] == 400
        assert (await post("/v1/apply", data="x"))[0] == 415
        assert (await post("/v1/apply", json={}, headers={"Origin": "http://evil"}))[0] == 403
        assert (await post("/v1/rollback", json={"version": 7}))[0] == 404
        assert (await post("/v1/rollback", json={"by": "\n"}))[0] == 409
        async with session.get("/v1/history/serving") as answer:
            assert set((await answer.json())["texts"]) == {"a.yaml", "b.yaml"}
        async with session.get("/v1/history/x") as answer:
            assert answer.status == 400
        async with session.get("/v1/history?x=1") as answer:
            assert answer.status == 400
        async with session.get("/v1/history") as answer:
            assert len((await answer.json())["versions"]) == 2


async def from_files(folder: Path) -> AcceptedPolicies:
    """The digest of these texts' content."""
    async with contextlib.aclosing(PolicyFiles([folder], settle_s=0.001).states()) as states:
        state = await anext(states)
    assert isinstance(state, AcceptedPolicies)
    return state


def written(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, said in texts.items():
        (folder / f"{name}.yaml").write_text(said)
    return folder


async def test_equal_content_has_the_same_digest(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    async with serving() as server:
        server.changing.offer(await from_files(written(folder, a=text("p"), b=text("q"))))
        await server.serves("p", "q")
        await server.changing.apply(asked("p", "q", "r", by="ann"))
        done = await server.changing.rollback(RollbackRequest(version=1))
        assert (done.state, done.version) == ("served", 3)
        first, second, third = server.changing.history().versions
        assert first.digest == third.digest == done.digest != second.digest
        back = await server.changing.rollback(RollbackRequest())
        assert back.digest == second.digest, "the newest with different content"


async def test_comment_edits_make_no_version(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    async with serving() as server:
        server.changing.offer(await from_files(written(folder, a=text("p"))))
        await server.serves("p")
        other = await from_files(written(folder, moved=f"# a comment\n{text('p')}"))
        server.changing.offer(other)
        await until(
            lambda: server.reconciler.serving is not None and server.reconciler.serving.texts == other.texts
        )
        assert len(server.told) == 1, "served with its new locations, without a version"
        assert [one.serving for one in server.changing.history().versions] == [True]
        await server.changing.apply(asked("p", "q"))
        server.changing.offer(await from_files(written(folder, again=text("p"))))
        await server.serves("p", "q")
        assert server.changing.history().stands == 2


@pytest.mark.parametrize("applied", [False, True])
async def test_history_of_an_earlier_release_is_restored(tmp_path: Path, applied: bool) -> None:
    folder, kept = written(tmp_path / "policies", a=text("p")), tmp_path / "history"
    now = await from_files(folder)
    assert now.former
    assert now.former != now.digest
    async with serving(kept) as server:
        server.changing.offer(replace(now, digest=now.former, former=""))
        await server.serves("p")
        if applied:
            await server.changing.apply(asked("p", "q"))
            newest = server.archive.newest
            assert newest is not None
            server.archive.add(replace(newest, digest=digest_of(newest.texts)))
    async with serving(kept) as server:
        before = server.told
        assert len(before) == 1 + applied
        server.changing.offer(now)
        await server.serves(*(("p", "q") if applied else ("p",)))
        await until(lambda: server.reconciler.source_state.state == "accepted")
        assert server.told == before, "an upgrade alone makes no version"
        history = server.changing.history()
        assert history.versions[-1].serving
        assert history.stands == (2 if applied else 0)
        assert history.versions[0].digest == now.former


async def test_earlier_release_restores_applied_versions(tmp_path: Path) -> None:
    """An earlier release computes digests by names and texts, and compares them with those in version files."""
    folder, kept = written(tmp_path / "policies", a=text("p")), tmp_path / "history"
    async with serving(kept) as server:
        state = await from_files(folder)
        server.changing.offer(state)
        await server.serves("p")
        await server.changing.apply(asked("p", "q"))
    before, applied = (version_archive.read(kept / f"{number:08}.json", number) for number in (1, 2))
    assert (before.digest, before.beside) == (state.former, "")
    assert (applied.digest, applied.beside) == (digest_of(applied.texts), state.former)


async def test_applied_version_survives_restart_and_comment_edits(tmp_path: Path) -> None:
    folder, kept = tmp_path / "policies", tmp_path / "history"
    async with serving(kept) as server:
        server.changing.offer(await from_files(written(folder, a=text("p"))))
        await server.serves("p")
        await server.changing.apply(asked("p", "q"))
    async with serving(kept) as server:
        server.changing.offer(await from_files(written(folder, moved=f"# a comment\n{text('p')}")))
        await server.serves("p", "q")
        history = server.changing.history()
        assert (history.stands, len(history.versions)) == (2, 2)


async def test_unusable_policies_are_retried() -> None:
    async with serving() as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        server.flaws = (
            PolicyError(code="SG043", origin=Origin(file="q.yaml", line=1, column=1), message="no such secret"),
        )
        server.changing.offer(accepted("p", "q"))
        await until(lambda: server.reconciler.source_state.state == "refused")
        assert server.peers.pools == ["p"]
        with pytest.raises(UnusableTextsError) as refusal:
            await server.changing.apply(asked("p", "r"))
        assert refusal.value.errors == server.flaws
        server.changing.reoffer()
        assert server.peers.pools == ["p"]
        server.flaws = ()
        server.changing.reoffer()
        await server.serves("p", "q")
        version = server.told[-1][0]
        server.changing.reoffer()  # no change, so no other version
        assert server.told[-1][0] == version


async def test_applied_version_waits_until_usable_after_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        await server.changing.apply(asked("p", "q"))
    async with serving(tmp_path) as server:
        server.gone = {"q"}
        server.changing.offer(accepted("p"))
        await until(lambda: server.reconciler.source_state.state == "refused")
        assert server.reconciler.serving is None
        server.gone = set()
        server.changing.reoffer()
        await server.serves("p", "q")
        assert server.changing.history().stands == 2


async def test_apply_is_answered_after_persistence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change reported as served is still served after a kill."""
    writing, go_on = threading.Event(), threading.Event()
    write_whole = version_archive.write

    def slow(path: Path, version: PolicyVersion) -> None:
        if version.number > 1:
            writing.set()
            assert go_on.wait(60)
        write_whole(path, version)

    monkeypatch.setattr(version_archive, "write", slow)
    async with serving(tmp_path) as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        applying = asyncio.create_task(server.changing.apply(asked("p", "q")))
        await server.serves("p", "q")
        assert await asyncio.to_thread(writing.wait, 60)
        assert not applying.done()
        go_on.set()
        done = await applying
        assert (done.state, done.version, done.reason) == ("served", 2, "")
        assert (tmp_path / "00000002.json").is_file()


async def test_unsaved_change_is_served_and_reported(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("no folder")
    async with serving(tmp_path / "history") as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        done = await server.changing.apply(asked("p", "q"))
        assert done.state == "served"
        assert "cannot write" in done.reason


async def test_file_edit_during_apply_supersedes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        offer = server.reconciler.offer

        def overtaken(state: PolicyState) -> None:
            monkeypatch.undo()
            offer(state)
            server.changing.offer(accepted("p", "files"))

        monkeypatch.setattr(server.reconciler, "offer", overtaken)
        done = await server.changing.apply(asked("p", "applied", by="ann"))
        assert (done.state, done.version) == ("superseded", 0)
        await server.serves("p", "files")
