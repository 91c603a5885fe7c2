"""Random interleavings of edits, proxies and rounds: the last edit is served, or reported as held or refused.

A seed decides what happens and when, so a failed run can be repeated. Everything from the files to the published
snapshots is real; only proxies are lists.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from policies.findings import PolicyErrors
from policies.load import load
from tests.eventually import eventually
from tests.xds_server.reconcile.fake_peers import Peers, text
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.policy_state import PolicyState, ServingPolicies
from xds_server.model.type_urls import CLUSTER
from xds_server.model.view import View
from xds_server.reconcile.reconciler import Reconciler
from xds_server.rollout.history.version_archive import VersionArchive
from xds_server.rollout.policy_file_source import PolicyFiles
from xds_server.rollout.policy_versions import PolicyVersions

LIMIT_S: Final = 60.0
EDITS: Final = 25
POOLS: Final = tuple(f"pool{number}" for number in range(6))
ZONES: Final = tuple(View(zone=f"z{number}") for number in range(4))


class Server:
    """From files to proxies; ``turn`` does one random action."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder / "policies"
        self.folder.mkdir()
        self.random = random.Random(seed)
        self.peers = Peers()
        self.reconciler = Reconciler(self.peers, Metrics(), on_adopted=self.adopted)
        self.changing = PolicyVersions(self.reconciler, VersionArchive(None))
        self.files = PolicyFiles((self.folder,), settle_s=0.002, poll_s=0.02)
        self.states: list[PolicyState] = []
        self.write("policies.yaml", self.content())

    def adopted(self, serving: ServingPolicies) -> None:
        self.changing.on_adopted(serving)

    async def follow(self) -> None:
        async with contextlib.aclosing(self.files.states()) as states:
            async for state in states:
                self.states.append(state)
                self.changing.offer(state)

    def content(self) -> str:
        """None to all of the pools, sometimes in an invalid text."""
        pools = self.random.sample(POOLS, self.random.randint(0, len(POOLS)))
        bad = "\n---\nkind: [" if self.random.random() < 0.2 else ""
        return "\n---\n".join(text(name, engines=self.random.randint(1, 4)) for name in pools) + bad

    def write(self, name: str, content: str) -> None:
        fresh = self.folder / f".{name}"
        fresh.write_text(content)
        fresh.replace(self.folder / name)

    async def turn(self) -> None:
        path = self.folder / "policies.yaml"
        match self.random.randrange(6):
            case 0 | 1:
                self.write(path.name, self.content())
            case 2:  # in place, in two halves
                content = self.content()
                with path.open("w") as file:
                    file.write(content[: len(content) // 2])
                    file.flush()
                    await asyncio.sleep(self.random.uniform(0, 0.01))
                    file.write(content[len(content) // 2 :])
            case 3:  # there, and back again
                before, after = path.read_text(), self.content()
                self.write(path.name, after)
                await asyncio.sleep(self.random.uniform(0, 0.01))
                self.write(path.name, before)
            case 4:
                path.unlink()
                await asyncio.sleep(self.random.uniform(0, 0.02))
                self.write(path.name, self.content())
            case _:
                self.reconciler.release_shrink()
        self.peers.connected = set(self.random.sample(ZONES, self.random.randint(0, len(ZONES))))
        if self.random.random() < 0.5:
            self.reconciler.proxies_changed()
        await asyncio.sleep(self.random.choice((0, 0, 0.005, 0.02, 0.1)))

    def done(self) -> bool:
        """Whether the present files are served, or reported as held or refused."""
        files, serving = self.reconciler.source_state, self.reconciler.serving
        try:
            policies = load((self.folder,))
        except PolicyErrors as errors:
            told = files.refused.errors if files.refused is not None else ()
            return files.state == "refused" and list(map(str, told)) == list(map(str, errors.exceptions))
        if files.digest != policies.digest or not self.peers.published:
            return False
        served = self.peers.published[-1][View()].of(CLUSTER).keys()
        if serving is None or served != serving.policies.pools.keys():
            return False
        if files.state == "held":
            return bool(files.reason) and serving.digest != policies.digest
        return files.state == "accepted" and serving.digest == policies.digest

    def __str__(self) -> str:
        """State to debug a lost edit."""
        one = self.reconciler
        return (
            f"files: {one.source_state}\nserving: {one.serving and one.serving.digest[:12]}, "
            f"read: {[f'{type(state).__name__} {state.digest[:12]}' for state in self.states[-4:]]}, "
            f"connected: {sorted(view.zone for view in self.peers.connected)}\n"
            f"on disk: {(self.folder / 'policies.yaml').read_text()}"
        )


@contextlib.asynccontextmanager
async def running(server: Server) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one) for one in (server.follow(), server.files.watch(), server.reconciler.run())]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.mark.parametrize("seed", range(4))
async def test_last_edit_is_served_held_or_refused(tmp_path: Path, seed: int) -> None:
    server = Server(tmp_path, seed)
    async with running(server):
        for _ in range(EDITS):
            await server.turn()
        try:
            await eventually(server.done, "the last edit is in force, or the reason is reported", LIMIT_S)
        except pytest.fail.Exception as failure:
            pytest.fail(f"{failure}\nseed {seed}\n{server}")
