"""Asks engines to load LoRA adapters, as pools state them; ``adapter_plan`` decides which and when.

This file is the shell: one request at a time to an engine, with the address, TLS and API key of its probes. The
path comes from the policy alone. What an engine answers is shortened and shown, and believed only once the engine
lists the adapter.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import aiohttp
import structlog

from engine.engine_http import EngineHttp, http_session
from engine.heartbeat import Heartbeat
from xds_server.engine_health.adapter_plan import (
    NO_ATTEMPTS,
    AdapterLoad,
    Attempts,
    Situation,
    accepted,
    boot_id,
    due_loads,
    failed,
    settled,
)
from xds_server.engine_health.engine_clients import EngineClients, probe_target
from xds_server.model.secret import Secrets

LOAD_TIMEOUT_S: Final = 60.0
"""vLLM reads the weights before it answers; from a slow disk that takes a while."""

INTERVAL_S: Final = 1.0
"""Time between two looks at what is missing."""

_log = structlog.get_logger()


class AdapterLoader:
    """``run`` asks until cancelled; ``situation`` returns the served policies with fleet and decisions, or None.

    ``leads``: whether this replica is the one that asks. ``count`` is called with each result.
    """

    def __init__(
        self,
        situation: Callable[[], Situation | None],
        *,
        leads: Callable[[], bool] = lambda: True,
        count: Callable[[str], None] = lambda _: None,
        secrets: Callable[[], Secrets] = lambda: MappingProxyType({}),
        api_keys: Callable[[], Mapping[str, str]] = lambda: MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._situation = situation
        self._leads = leads
        self._count = count
        self._clock = clock
        self._interval_s = interval_s
        self._heartbeat = Heartbeat(clock)
        self._clients = EngineClients(
            secrets=secrets, api_keys=api_keys, clock=clock, late_since=self._heartbeat.late_since
        )
        self._running: dict[AdapterLoad, str] = {}
        self._attempts: Attempts = NO_ATTEMPTS

    def load_failures(self) -> Mapping[tuple[str, str], str]:
        """By pool and adapter: the engine that was asked last without success, and why."""
        found: dict[tuple[str, str], tuple[float, str]] = {}
        for load, attempt in self._attempts.items():
            key = load.engine.pool, load.adapter
            if attempt.trouble and attempt.until_s > found.get(key, (float("-inf"), ""))[0]:
                found[key] = attempt.until_s, f"{load.engine.engine}: {attempt.trouble}"
        return {key: text for key, (_, text) in found.items()}

    async def run(self) -> None:
        """Ask until cancelled."""
        self._heartbeat.start()
        try:
            async with http_session() as http, asyncio.TaskGroup() as group:
                while True:
                    for load, engine, path in self._due(http):
                        group.create_task(self._ask(load, engine, path))
                    await asyncio.sleep(self._interval_s)
        finally:
            self._heartbeat.stop()

    def _due(self, http: aiohttp.ClientSession) -> Iterator[tuple[AdapterLoad, EngineHttp, str]]:
        """The loads to ask for now, each with the engine's client and the path."""
        situation = self._situation()
        if situation is None or not self._leads():
            self._attempts = NO_ATTEMPTS
            return
        now_s = self._clock()
        self._attempts, ended = settled(self._attempts, situation, now_s)
        for load, result in ended:
            self._record(load, result)
        for load in due_loads(situation, self._attempts, self._running, now_s):
            pool = situation.policies.pools[load.engine.pool].spec
            endpoint = next(one for one in pool.endpoints if one.name == load.engine.engine)
            path = next(one.path for one in pool.adapters if one.name == load.adapter)
            self._running[load] = boot_id(situation.fleet.engine(load.engine))
            yield load, self._clients.client(http, probe_target(load.engine.pool, pool, endpoint)), path

    async def _ask(self, load: AdapterLoad, engine: EngineHttp, path: str) -> None:
        _log.info("adapter.load", engine=str(load.engine), adapter=load.adapter, path=path)
        try:
            failure = await engine.load_adapter(load.adapter, path, LOAD_TIMEOUT_S)
        finally:
            process = self._running.pop(load)
        before, now_s = self._attempts.get(load), self._clock()
        if failure is None:
            after = accepted(before, process, now_s)
        else:
            after = failed(before, process, failure.detail, now_s)
            self._record(load, "refused" if failure.answered else "failed", failure.detail)
        self._attempts = {**self._attempts, load: after}

    def _record(self, load: AdapterLoad, result: str, detail: str = "") -> None:
        self._count(result)
        event = {"engine": str(load.engine), "adapter": load.adapter, "result": result}
        if result == "loaded":
            _log.info("adapter.loaded", **event)
        else:
            _log.warning("adapter.not_loaded", **event, reason=detail)
