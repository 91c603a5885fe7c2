"""Policy files under real changes by editors, Kubernetes and accidents: with real files and a real watcher."""

import asyncio
import contextlib
import os
import shutil
import time
from pathlib import Path

import pytest

from policies.findings import Problem
from policies.policy_files import read
from xds_server.model.policy_state import AcceptedPolicies, PolicyState, RejectedPolicies
from xds_server.rollout import policy_file_source
from xds_server.rollout import policy_file_source as files_module
from xds_server.rollout.policy_file_source import SETTLED_NS, PolicyFiles

LIMIT_S = 60.0
NEVER_S = 3600.0


def pool(name: str, engines: int = 1) -> str:
    endpoints = "".join(f"\n    - {{address: 10.0.0.{number + 1}, port: 8000}}" for number in range(engines))
    return (
        "apiVersion: switchgear.dev/v1alpha1\n"
        "kind: EnginePool\n"
        f"metadata: {{name: {name}}}\n"
        f"spec:\n  model: m\n  endpoints:{endpoints}\n"
    )


def put(path: Path, text: str) -> None:
    """Write the file atomically: on a slow disk, half a file may stay unchanged for long enough."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)


def names(state: PolicyState) -> list[str]:
    assert isinstance(state, AcceptedPolicies), state
    return list(state.policies.pools)


def names_or_none(state: PolicyState) -> list[str] | None:
    return names(state) if isinstance(state, AcceptedPolicies) else None


class PolicyStates:
    """The states of these files, as they are yielded."""

    def __init__(self, files: PolicyFiles) -> None:
        self.states: asyncio.Queue[PolicyState] = asyncio.Queue()
        self._files = files

    async def follow(self) -> None:
        async with contextlib.aclosing(self._files.states()) as states:
            async for state in states:
                self.states.put_nowait(state)

    async def next(self) -> PolicyState:
        return await asyncio.wait_for(self.states.get(), LIMIT_S)


@contextlib.asynccontextmanager
async def followed(*paths: Path, settle_s: float = 0.05, poll_s: float = 0.2, watch: bool = True):
    files = PolicyFiles(paths, settle_s=settle_s, poll_s=poll_s)
    follower = PolicyStates(files)
    tasks = [asyncio.create_task(follower.follow())]
    if watch:
        tasks.append(asyncio.create_task(files.watch()))
    try:
        yield follower
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "a.yaml").write_text(pool("a"))
    return policies


async def test_present_state_is_yielded_first(folder: Path) -> None:
    async with followed(folder) as files:
        state = await files.next()
    assert isinstance(state, AcceptedPolicies)
    assert names(state) == ["a"]
    assert state.texts == {str(folder / "a.yaml"): pool("a")}


async def test_in_place_edit_is_detected(folder: Path) -> None:
    # The poll never runs: only a notification can have detected it.
    async with followed(folder, poll_s=NEVER_S) as files:
        await files.next()
        # The watcher does not signal readiness, so touch the file until the edit is detected.
        async with asyncio.timeout(LIMIT_S):
            (folder / "a.yaml").write_text(pool("b"))
            while files.states.empty():
                os.utime(folder / "a.yaml")
                await asyncio.sleep(0.1)
        while not isinstance(state := await files.next(), AcceptedPolicies):
            pass  # a slow disk had it empty for long enough
        assert names(state) == ["b"]


async def test_poll_detects_edits_without_notifications(folder: Path) -> None:
    async with followed(folder, watch=False) as files:
        await files.next()
        put(folder / "a.yaml", pool("b"))
        assert names(await files.next()) == ["b"]


async def test_edit_by_rename_is_detected(folder: Path) -> None:
    async with followed(folder) as files:
        await files.next()
        (folder / ".a.yaml.swp").write_text(pool("b"))
        (folder / ".a.yaml.swp").replace(folder / "a.yaml")
        assert names(await files.next()) == ["b"]


async def test_renamed_single_file_is_detected(folder: Path) -> None:
    async with followed(folder / "a.yaml") as files:
        assert names(await files.next()) == ["a"]
        for name in ("b", "c"):
            (folder / "new").write_text(pool(name))
            (folder / "new").replace(folder / "a.yaml")
            assert names(await files.next()) == [name]


async def test_kubernetes_symlink_swap_is_detected(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    for number, name in enumerate(("a", "b", "c")):
        (mount / f"..{number}").mkdir(parents=True)
        (mount / f"..{number}" / "pool.yaml").write_text(pool(name))
    (mount / "..data").symlink_to("..0")
    (mount / "pool.yaml").symlink_to("..data/pool.yaml")
    async with followed(mount) as files:
        assert names(await files.next()) == ["a"]
        for number, name in ((1, "b"), (2, "c")):
            (mount / "..tmp").symlink_to(f"..{number}")
            (mount / "..tmp").rename(mount / "..data")
            shutil.rmtree(mount / f"..{number - 1}")
            assert names(await files.next()) == [name]


async def test_vanished_and_returned_folder_is_followed(folder: Path) -> None:
    async with followed(folder) as files:
        await files.next()
        shutil.move(folder, folder.parent / "away")
        gone = await files.next()
        assert isinstance(gone, RejectedPolicies)
        assert [error.code for error in gone.errors] == ["SG001"]
        os.mkdir(folder)  # noqa: PTH102 - in a loop of its own, a folder more or less does not block
        state = await files.next()
        assert isinstance(state, RejectedPolicies)  # an empty folder is refused, too
        put(folder / "b.yaml", pool("b"))
        assert names(await files.next()) == ["b"]
        put(folder / "b.yaml", pool("c"))
        assert names(await files.next()) == ["c"]


async def test_bad_edit_is_refused_with_every_reason(folder: Path) -> None:
    async with followed(folder) as files:
        before = await files.next()
        put(folder / "a.yaml", pool("a").replace("model: m", "modle: m\n  slots: x"))
        refused = await files.next()
        assert isinstance(refused, RejectedPolicies)
        assert len(refused.errors) >= 2
        assert all(error.origin.file == str(folder / "a.yaml") for error in refused.errors)
        put(folder / "a.yaml", pool("a"))
        back = await files.next()
        assert isinstance(back, AcceptedPolicies)
        assert back.digest == before.digest


async def test_half_written_file_is_not_read(folder: Path) -> None:
    whole = pool("a", engines=40) + "---\n" + pool("z")
    async with followed(folder, settle_s=1.0) as files:
        await files.next()
        for _ in range(10):
            longest_s, wrote_s = 0.0, time.monotonic()
            with (folder / "a.yaml").open("w") as file:
                for line in whole.splitlines(keepends=True):
                    file.write(line)
                    file.flush()
                    await asyncio.sleep(0.04)  # altogether twice as long as the settling time
                    before_s, wrote_s = wrote_s, time.monotonic()
                    longest_s = max(longest_s, wrote_s - before_s)
            state = await files.next()
            if longest_s < 0.5:
                break
            # On a paused machine half a file is unchanged for as long as a whole one: nothing to check then.
            while names_or_none(state) != ["a", "z"]:
                state = await files.next()
            put(folder / "a.yaml", pool("between"))
            while names_or_none(state) != ["between"]:
                state = await files.next()
        assert isinstance(state, AcceptedPolicies)
        assert (names(state), len(state.policies.pools["a"].spec.endpoints)) == (["a", "z"], 40)
        assert files.states.empty()


async def test_rewriting_the_same_text_yields_nothing(folder: Path) -> None:
    async with followed(folder) as files:
        await files.next()
        put(folder / "a.yaml", pool("a"))
        (folder / "notes.txt").write_text("not a policy")
        put(folder / "b.yaml", pool("b"))
        assert names(await files.next()) == ["a", "b"]
        assert files.states.empty()


async def test_missing_folder_is_refused_and_watched(tmp_path: Path) -> None:
    async with followed(tmp_path / "later") as files:
        assert isinstance(await files.next(), RejectedPolicies)
        (tmp_path / "later").mkdir()
        put(tmp_path / "later" / "a.yaml", pool("a"))
        while not isinstance(state := await files.next(), AcceptedPolicies):
            pass  # the empty folder may have been seen in between
        assert names(state) == ["a"]


async def test_edit_reverted_during_validation_is_not_yielded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = files_module.load_found

    def meanwhile(*arguments):
        """Write, and revert the edit while the files are loaded."""
        put(folder / "a.yaml", pool("other"))
        policies = load(*arguments)
        put(folder / "a.yaml", pool("a"))
        return policies

    monkeypatch.setattr(files_module, "load_found", meanwhile)
    async with followed(folder, watch=False) as files:
        state = await files.next()
        assert isinstance(state, AcceptedPolicies)
        assert names(state) == ["a"]
        assert "name: a}" in state.texts[str(folder / "a.yaml")]


def test_unchanged_files_are_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []

    def reading(path: Path) -> bytes | Problem:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(policy_file_source, "read", reading)
    now_ns = [time.time_ns()]
    digests = policy_file_source._FileDigests(wall_ns=lambda: now_ns[0])
    first = digests.digest((folder,))
    assert first == policy_file_source._look((folder,)).digest
    reads.clear()
    assert digests.digest((folder,)) == first
    assert reads, "times of a file that was just written do not identify its content yet"
    now_ns[0] += 2 * SETTLED_NS
    digests.digest((folder,))
    reads.clear()
    assert digests.digest((folder,)) == first
    assert not reads
    (edited,) = list(folder.glob("*.yaml"))[:1]
    times = edited.stat()
    text = edited.read_bytes()
    edited.write_bytes(text[:-1] + b"#")
    os.utime(edited, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digests.digest((folder,)) != first, "size and time of modification are the same, of change is not"
    edited.unlink()
    assert digests.digest((folder,)) == policy_file_source._look((folder,)).digest
