"""The whole server, killed at any moment of an edit, an apply or a rollback: only its absence is seen.

After each kill the next server serves the policies from before or after the change, complete; a confirmed version
is served; history, last good state and ledger read without error; no proxy lost a request or rebuilt a cluster or
listener.

``SWITCHGEAR_TEST_SERVER_KILLS`` asks for more kills, ``SWITCHGEAR_TEST_SEED`` for the same again.
"""

import asyncio
import contextlib
import json
import os
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from chaos.processes import ChildProcess
from tests.with_envoy.serve.conftest import LIMIT_S, PATIENT, Site, document, eventually
from xds_server.ledger.jsonl_writer import tail
from xds_server.rollout.history.version_archive import FOLDER, read
from xds_server.rollout.last_good import LastGoodStore

pytestmark = pytest.mark.envoy

KILLS: Final = int(os.environ.get("SWITCHGEAR_TEST_SERVER_KILLS", "10"))
SEED: Final = int(os.environ.get("SWITCHGEAR_TEST_SEED", str(random.SystemRandom().randrange(1_000_000))))
LONGEST_S: Final = 0.25
"""From the beginning of a change to the kill: it is judged, served and written down within this, mostly."""

CHURN: Final = (
    "cluster_manager.cluster_added",
    "cluster_manager.cluster_modified",
    "cluster_manager.cluster_removed",
    "listener_manager.listener_added",
    "listener_manager.listener_modified",
    "listener_manager.listener_removed",
)

Texts = Mapping[str, str]


@dataclass
class Change:
    """One change in progress; ``confirmed``: the caller was answered that it is served."""

    after: list[Texts] = field(default_factory=list)
    confirmed: bool = False


class Operator:
    """Edits, applies and rolls back; ``serving`` is what was served when the last server was looked at."""

    def __init__(self, site: Site, rng: random.Random) -> None:
        self.site = site
        self.rng = rng
        self.number = 0
        self.kinds: list[str] = []
        self.serving: Texts = {}

    def texts(self) -> Texts:
        """Policies that differ from all before in two files at once, and in nothing but routes."""
        self.number += 1
        total, marks = f"{200 + self.number}s", "".join(f"# {self.number}\n" for _ in range(self.number % 400))
        policy = document(
            "ResiliencePolicy", "chat", {"pools": ["chat"], "timeouts": {"nonStreaming": {"total": total}}}
        )
        documents = {"a.yaml": [self.site.pool(probe=PATIENT), policy], "b.yaml": [self.site.route()]}
        return {
            str(self.site.policies / name): marks + "\n---\n".join(json.dumps(one) for one in found)
            for name, found in documents.items()
        }

    async def change(self, change: Change) -> None:
        """Begin one change; it may be cut off anywhere."""
        kind = self.rng.choice(("edit", "apply", "apply", "rollback"))
        self.kinds.append(kind)
        if kind == "edit":
            change.after.append(self.write())
            change.confirmed = True  # needs no answer: the next server reads the files
        elif kind == "apply":
            texts = self.texts()
            change.after.append(texts)
            await self._post("/v1/apply", {"texts": dict(texts), "by": "ops"}, change)
        else:
            history = await self.site.get("/v1/history")
            number = self.rng.choice(history["versions"])["number"]
            page = await self.site.get(f"/v1/history/{number}")
            change.after.append(page["texts"])
            await self._post("/v1/rollback", {"version": number, "by": "ops"}, change)

    def write(self) -> Texts:
        """Put other policies into the files, one after the other."""
        texts = self.texts()
        for name, text in texts.items():
            path = Path(name)
            path.with_suffix(".tmp").write_text(text)
            path.with_suffix(".tmp").replace(path)
        return texts

    async def _post(self, path: str, body: Mapping[str, Any], change: Change) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://{self.site.admin}{path}", json=body) as answer,
        ):
            page = await answer.json()
            change.confirmed = answer.status == 200 and page["state"] == "served"


@pytest.mark.timeout(60.0 + 30.0 * KILLS)
async def test_sigkill_during_edit_apply_or_rollback_loses_nothing(site: Site) -> None:
    sys.stdout.write(f"SWITCHGEAR_TEST_SEED={SEED} SWITCHGEAR_TEST_SERVER_KILLS={KILLS}\n")
    rng = random.Random(SEED)
    await site.start_engines(2)
    operator = Operator(site, rng)
    operator.write()
    flags = ("--ledger", str(site.folder / "ledger.jsonl"), "--settle", "20ms", "--first-reports", "1s")
    server = await site.serve(*flags)
    envoy = await site.envoy()
    await eventually(lambda: _answers(site), "the first answer")
    await eventually(lambda: _synced(site), "the proxy has everything")
    built = {name: (await envoy.stats(name))[name] for name in CHURN}
    load = site.load()
    operator.serving = (await site.get("/v1/history/serving"))["texts"]
    confirmed = 0
    for kill in range(1, KILLS + 1):
        change = await _killed_in_a_change(operator, server)
        _reads_clean(site, kill)
        server = await site.serve(*flags)
        now = await _settled(site)
        may_be = change.after if change.confirmed else [operator.serving, *change.after]
        assert now in may_be, (
            f"after kill {kill}, of {operator.kinds[-1]}: neither before nor after: {_short(now)}"
        )
        confirmed += change.confirmed
        operator.serving = now
        assert (await site.get("/v1/history"))["damaged"] == []
    sys.stdout.write(f"{KILLS} kills in {operator.kinds}; {confirmed} of these changes were confirmed\n")
    await eventually(lambda: _synced(site), "the proxy has what it should have")
    await load.more(20)
    await load.end()
    assert load.failed == []
    assert {name: (await envoy.stats(name))[name] for name in CHURN} == built


async def _killed_in_a_change(operator: Operator, server: ChildProcess) -> Change:
    change = Change()
    changing = asyncio.create_task(operator.change(change))
    await asyncio.wait((changing,), timeout=operator.rng.uniform(0.0, LONGEST_S))
    await operator.site.kill(server)
    with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError):
        await asyncio.wait_for(changing, LIMIT_S)
    return change


def _reads_clean(site: Site, kills: int) -> None:
    LastGoodStore(site.state_dir).read()
    folder = site.state_dir / FOLDER
    for path in sorted(folder.glob("[0-9]*.json")):
        read(path, int(path.stem))
    torn = 0
    for line in tail(site.folder / "ledger.jsonl"):
        try:
            json.loads(line)
        except ValueError:
            torn += 1
    assert torn <= kills


async def _settled(site: Site) -> Texts:
    """What is served once the files were read."""

    async def read_once() -> bool:
        state = (await site.get("/v1/policies"))["state"]
        return bool(state == "accepted")

    await eventually(read_once, "the policies are read")
    texts: Texts = (await site.get("/v1/history/serving"))["texts"]
    return texts


async def _synced(site: Site) -> bool:
    proxies = (await site.get("/v1/proxies"))["proxies"]
    return bool(proxies) and all(kind["state"] == "SYNCED" for one in proxies for kind in one["types"])


async def _answers(site: Site) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        return (await site.ask())[0] == 200
    return False


def _short(texts: Texts) -> Mapping[str, str]:
    return {name: text[-80:] for name, text in texts.items()}
