"""Monitors one engine: probes it, sends canaries and warm-up prompts, and reports its state after each reading.

The shell around ``agent_engine_state`` and ``probe_schedule``: sockets, timers and tasks. At most one metrics
request, one canary and one warm-up prompt are in flight, so a slow engine gets fewer.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

import structlog

from engine.adapter_list import ADAPTERS_INTERVAL_S, MODELS_PATH, adapter_names
from engine.agent.agent_config import AgentConfig
from engine.agent.agent_engine_state import DrainOrder, EngineHealthState
from engine.agent.probe_schedule import COUNT_INTERVAL_S, canary_due, is_idle, metrics_due, pause_s
from engine.engine_http import EngineHttp
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure
from engine.gpu.gpu_judgement import GpuJudgement

log = structlog.get_logger()

_VERSION_PATH: Final = "/version"
_GATE_PATH: Final = "/switchgear/in_flight"
# Retry interval and limit of failed warm-up prompts.
_WARM_UP_PAUSE_S: Final = 1.0
_WARM_UP_TRIES: Final = 5
_TRIPWIRE_SPACE_S: Final = 1.0


class EngineMonitor:
    """Monitors ``engine`` until cancelled; ``standing`` is the current state, ``changed`` is called on each
    change.

    ``model`` and ``revision`` are reported by the engine, empty before. ``adapters``: names of its LoRA adapters,
    None before it listed them.
    """

    def __init__(
        self,
        engine: EngineHttp,
        config: AgentConfig,
        changed: Callable[[], None],
        *,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._engine = engine
        self._config = config
        self._changed = changed
        self._clock = clock
        self._rng = rng
        self._look_now = asyncio.Event()
        self._asked_at_s: float | None = None
        self._load_counts = False
        self.standing = EngineHealthState.new(config, clock())
        self.model = config.model
        self.revision = ""
        self.adapters: tuple[str, ...] | None = None
        self._adapters_of = 0
        self._adapters_from_s = 0.0
        self.look_s = 0.0

    def set_drain_order(self, order: DrainOrder | None) -> None:
        """Start or end a drain."""
        self._change(self.standing.with_drain_order(order, self._clock(), self._config))
        self._look_now.set()

    def on_gpu_judgement(self, gpu: GpuJudgement) -> None:
        """Apply a GPU judgement; a bad one triggers a probe at once."""
        if gpu == self.standing.gpu:
            return
        worse = self.standing.gpu is not None and gpu.action.severity > self.standing.gpu.action.severity
        self._change(self.standing.with_gpu(gpu, self._clock(), self._config))
        if worse:
            self._look_now.set()

    async def run(self) -> None:
        """Probe until cancelled."""
        canary: asyncio.Task[CanaryReading] | None = None
        side: dict[str, asyncio.Task[None]] = {}
        introduced = 0
        try:
            while True:
                if self._look_now.is_set() or metrics_due(self.standing, self._clock(), counts=self._counts):
                    self._look_now.clear()
                    canary = await self._look(canary)
                boot = self.standing.boot
                if boot.heard and introduced != boot.number and await self._introduce():
                    introduced = boot.number
                at_s = self._clock()
                if self.model and canary_due(self.standing, self._config, at_s, self._asked_at_s):
                    self._asked_at_s = at_s
                    self.standing = self.standing.canary_sent(at_s)
                    books = self.standing.judgement.books
                    limit_s = books.canary_limit_s(self._config.probe)
                    canary = asyncio.create_task(
                        self._engine.send_canary(self._prompt(2), limit_s, rank=books.asked_rank)
                    )
                self._keep_running(side)
                canary = await self._rest(canary)
        finally:
            out = [*side.values(), *([canary] if canary is not None else [])]
            for task in out:
                task.cancel()
            if out:
                await asyncio.wait(out)

    async def _look(self, canary: asyncio.Task[CanaryReading] | None) -> asyncio.Task[CanaryReading] | None:
        """Read the counters and return the canary still in flight."""
        look = await self._read_metrics()
        if canary is not None and canary.done() and look.answered:
            self._hear(canary.result())
            canary = None
            look = await self._read_metrics()
        self._hear(look)
        return canary

    async def _read_metrics(self) -> MetricsReading:
        answer = self.standing.judgement.books.answer
        began_s = self._clock()
        look = await self._engine.read_metrics(
            suspect=answer is not None and answer.status >= 500,
            stalled=self.standing.judgement.books.suspects_pause(began_s),
        )
        self.look_s = look.at_s - began_s
        self._trust_load(look)
        return look

    async def _rest(self, canary: asyncio.Task[CanaryReading] | None) -> asyncio.Task[CanaryReading] | None:
        """Wait until the next probe is due; return the canary still in flight."""
        due_at_s = self._clock() + self._pause_s()
        called = asyncio.create_task(self._look_now.wait())
        try:
            while (wait_s := due_at_s - self._clock()) > 0 and not self._look_now.is_set():
                counting = canary is None and self._counts and is_idle(self.standing)
                out: list[asyncio.Task[CanaryReading] | asyncio.Task[bool]] = [called]
                if canary is not None:
                    out.append(canary)
                # Read the counters before a late canary of an idle engine counts as missing.
                owing = canary is not None and self._asked_after_look and is_idle(self.standing)
                limit_s = min(wait_s, COUNT_INTERVAL_S) if counting or owing else wait_s
                done, _ = await asyncio.wait(out, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
                if canary is not None and canary in done:
                    answer, canary = canary.result(), None
                    self._hear(answer)
                    if answer.failure is not None and not answer.failure.answered:
                        self._look_now.set()  # the current counters decide what this silence means
                    due_at_s = min(due_at_s, self._clock() + self._pause_s())
                elif done or limit_s >= wait_s:
                    continue
                elif owing or await self._engine.count() != 0:
                    self._look_now.set()  # else new requests arrived, or the engine stopped counting
        finally:
            called.cancel()
        return canary

    def _keep_running(self, side: dict[str, asyncio.Task[None]]) -> None:
        """Start background tasks and collect finished ones."""
        for name in [name for name, task in side.items() if task.done()]:
            side.pop(name).result()
        now = self.standing
        answers = now.boot.heard and now.judgement.books.trouble is None
        if "adapters" not in side and answers and self._adapters_due:
            side["adapters"] = asyncio.create_task(self._read_adapters(now.boot.number))
        if "tripwire" not in side and answers:
            side["tripwire"] = asyncio.create_task(self._tripwire())
        warming = now.boot.first_token and now.order is None and self.model
        if "warm_up" not in side and warming and now.warm_up_left(self._config):
            side["warm_up"] = asyncio.create_task(self._warm_up(now.boot.number))

    async def _tripwire(self) -> None:
        """Idle connection that closes when the engine process ends."""
        await self._engine.wait_disconnected()
        self._look_now.set()
        # Some servers close idle connections: do not probe after each close.
        await asyncio.sleep(_TRIPWIRE_SPACE_S)

    @property
    def _adapters_due(self) -> bool:
        return self._adapters_of != self.standing.boot.number or self._clock() >= self._adapters_from_s

    async def _read_adapters(self, boot: int) -> None:
        """Read which adapters the engine has; an engine that does not answer keeps those of the same process."""
        found = adapter_names(await self._engine.value(MODELS_PATH))
        self._adapters_from_s = self._clock() + ADAPTERS_INTERVAL_S
        if found is None and self._adapters_of == boot:
            return
        self._adapters_of = boot
        if found != self.adapters:
            self.adapters = found
            self._changed()

    async def _warm_up(self, boot: int) -> None:
        """Run the remaining warm-up prompts one by one, until the engine restarts."""
        tries = 0
        while self.standing.boot.number == boot and self.standing.order is None:
            left = self.standing.warm_up_left(self._config)
            if not left:
                return
            answer = await self._engine.send_canary(self._prompt(left[0]), self._config.warm_up_timeout_s)
            tries += 1
            failure = answer.failure
            if failure is not None and not failure.refusal and tries < _WARM_UP_TRIES:
                await asyncio.sleep(_WARM_UP_PAUSE_S)
                continue
            seconds = round(answer.at_s - answer.sent_at_s, 3)
            if failure is None:
                log.info("warm_up.done", words=left[0], seconds=seconds)
            else:
                # One failing prompt must not keep the engine out of rotation.
                log.warning("warm_up.given_up", words=left[0], reason=failure.detail)
            tries = 0
            if self.standing.boot.number == boot:
                self._change(self.standing.warm_up_prompt_done(self._clock(), self._config))

    async def _introduce(self) -> bool:
        """Whether model and version are known."""
        version = await self._engine.value(_VERSION_PATH)
        if isinstance(version, dict) and isinstance(version.get("version"), str):
            self.revision = f"vllm {version['version']}"
        if self._config.model:
            self._engine.name_model(self._config.model)
            return True
        models = await self._engine.value(MODELS_PATH)
        if isinstance(models, ProbeFailure):
            if models.status in (401, 403):
                # Without the model's name no canary can be sent; this refusal stands for it.
                at_s = self._clock()
                self._hear(CanaryReading(sent_at_s=at_s, at_s=at_s, failure=models))
            return False
        try:
            self.model = str(models["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            return False
        self._engine.name_model(self.model)
        return True

    @property
    def _asked_after_look(self) -> bool:
        asked_at_s, looked_at_s = (
            self.standing.judgement.books.asked_at_s,
            self.standing.judgement.books.looked_at_s,
        )
        return asked_at_s is not None and looked_at_s is not None and asked_at_s > looked_at_s

    @property
    def _counts(self) -> bool:
        """Whether the count of requests is the engine's: the gate's is; vLLM's stays 0 unless enabled.

        That of one API process among several is not: 0 does not mean idle.
        """
        if self.standing.count_is_partial:
            return False
        return self._engine.count_path == _GATE_PATH or (self._load_counts and bool(self._engine.count_path))

    def _trust_load(self, look: MetricsReading) -> None:
        if look.in_flight:
            self._load_counts = True

    def _pause_s(self) -> float:
        return pause_s(self.standing, self._config, self._clock(), look_s=self.look_s, counts=self._counts)

    def _hear(self, reading: MetricsReading | CanaryReading) -> None:
        self._change(self.standing.after(reading, self._config))

    def _change(self, standing: EngineHealthState) -> None:
        self.standing = standing
        self._changed()

    def _prompt(self, words: int) -> str:
        """``words`` words unknown to any prefix cache: even the first differs each time."""
        return " ".join(f"{self._rng.getrandbits(32):x}" for _ in range(words))
