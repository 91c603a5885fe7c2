"""Long prompts on two real vLLM engines with a context of 16 k tokens, behind a real Envoy with default policies.

A prompt is read in chunks of 2048 tokens, each a step of seconds in which no counter moves. The tests are chapters
on the same two engines: with the first-token gate, without it, and without agents, too.
"""

import asyncio
import contextlib
import random
import signal
import string
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chaos.real_vllm.tiny_model import ModelShape
from chaos.real_vllm.vllm_replica import START_LIMIT_S, wait_until_up
from engine.probe_settings import PREFILL_STALL_S
from engine.vllm_metrics import RankCounters, vllm_counters
from tests.with_vllm.conftest import LIMIT_S, Site, SiteSettings, eventually
from tests.with_vllm.traffic import Stream

# Steps of 0.3 to 3 s on an idle core. vLLM's attention on the CPU takes about four times as long without AVX-512.
SHAPE = ModelShape(
    context_tokens=16384, hidden=512, layers=4 if "avx512f" in Path("/proc/cpuinfo").read_text().split() else 1
)
POOL = {"serviceTime": "10s", "longestServiceTime": "120s"}
SITES = {
    "gate": SiteSettings(shape=SHAPE, gate=True, own_core=True, agent_flags=(), pool=POOL, resilience={}),
    "no-gate": SiteSettings(shape=SHAPE, gate=False, own_core=True, agent_flags=(), pool=POOL, resilience={}),
    "no-agent": SiteSettings(shape=SHAPE, gate=False, own_core=True, agents=False, pool=POOL, resilience={}),
}
BOTH = ("a", "b")
LONG = (2000, 8000, 15000)
# The agent's own looks: steps are as long as they seem to it, give or take one.
LOOKS_S = 0.5
# What confirms a verdict, and the way of a report, on two busy cores.
CONFIRMED_S = 1.0
# Longest step of each engine in these chapters.
longest_steps_s: dict[str, float] = {}
# Lowest request count of each engine, by URL.
lowest_loads: dict[str, int] = {}

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.envoy,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(2 * START_LIMIT_S),
    pytest.mark.parametrize("site", SITES.values(), ids=SITES, indirect=True, scope="module"),
]


def prompt(tokens: int) -> str:
    """A prompt that no prefix cache knows; each byte is a token."""
    return "".join(random.choices(string.ascii_lowercase + " ", k=tokens - 1))


def note(site: Site, what: str, seconds: float) -> None:
    means = "no agent" if not site.settings.agents else "gate" if site.settings.gate else "no gate"
    site.note(f"long context, {means}: {what}", seconds)


async def requests_held(site: Site, name: str) -> int:
    """Requests in an engine. Each client that leaves just as its answer ends lowers vLLM's count for good."""
    url = site.replicas[name].url
    async with site.session.get(f"{url}/load") as answer:
        load = int((await answer.json())["server_load"])
    lowest_loads[url] = min(lowest_loads.get(url, 0), load)
    return load - lowest_loads[url]


async def rest(site: Site) -> None:
    """Wait until both engines are in rotation and nothing is left of an earlier chapter, if there was one."""
    held: dict[str, int] = {}
    for name in BOTH:
        await wait_until_up(site.replicas[name])

    async def both_rest() -> bool:
        held.update({name: await requests_held(site, name) for name in BOTH})
        return all(site.watch.now(name).works and not held[name] for name in BOTH)

    try:
        await eventually(both_rest, "both engines are in rotation and idle")
    except pytest.fail.Exception as failure:
        pytest.fail(f"{failure}; held {held}\n" + "\n".join(site.watch.story(name) for name in BOTH))


class StepClock:
    """The scheduler steps of an engine with requests, by its metrics page; ``steps`` is 1 from the request on.

    ``excess``: a step that took about 3 s more than any before it, which agents rightly take for a hang.
    ``longest_look_s``: the longest time that a look took, which shows how late others look.
    """

    def __init__(self, site: Site, name: str) -> None:
        self.longest_s = 0.0
        self.steps = 0
        self.excess = ""
        self.longest_look_s = 0.0
        self.stepped_at_s = time.monotonic()
        self._url = site.replicas[name].url
        self._site = site
        self._name = name

    async def run(self) -> None:
        known: tuple[RankCounters, ...] = ()
        while True:
            began_s = time.monotonic()
            load = await requests_held(self._site, self._name)
            async with self._site.session.get(f"{self._url}/metrics") as answer:
                counters = vllm_counters(await answer.read())
            if not load:
                self.steps, self.stepped_at_s = 0, began_s
            elif not self.steps:
                self.steps, self.stepped_at_s = 1, began_s
            elif counters.ranks != known:
                self._step(began_s - self.stepped_at_s)
                self.steps, self.stepped_at_s = self.steps + 1, began_s
            else:
                self._note_excess(began_s - self.stepped_at_s)  # it may end with its requests, unseen
            known = counters.ranks
            self.longest_look_s = max(self.longest_look_s, time.monotonic() - began_s)
            await asyncio.sleep(0.05)

    def _note_excess(self, seconds: float) -> None:
        stopped = self._name in self._site.signalled
        if not stopped and seconds > PREFILL_STALL_S + self.longest_s - LOOKS_S:
            self.excess = f"{self._name}: a step of {seconds:.1f} s after steps of at most {self.longest_s:.1f} s"

    def _step(self, seconds: float) -> None:
        self._note_excess(seconds)
        self.longest_s = max(self.longest_s, seconds)
        longest_steps_s[self._name] = max(longest_steps_s.get(self._name, 0.0), seconds)


@contextlib.asynccontextmanager
async def step_clocks(site: Site) -> AsyncIterator[dict[str, StepClock]]:
    """The clocks of both engines while the block runs, from a moment on at which both are idle.

    Skips a test that fails where a step exceeded the documented limit, as on a machine that stalls.
    """
    await rest(site)
    clocks = {name: StepClock(site, name) for name in BOTH}
    tasks = [asyncio.create_task(clock.run()) for clock in clocks.values()]
    try:
        yield clocks
    except (AssertionError, pytest.fail.Exception):
        excess = next((clock.excess for clock in clocks.values() if clock.excess), "")
        if excess:
            pytest.skip(f"machine too uneven, {excess}")
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def assert_worked(site: Site, names: tuple[str, ...], since_s: float) -> None:
    """Fail if an engine had any verdict but ready or busy, or left rotation."""
    for name in names:
        assert all(seen.works for seen in site.watch.since(name, since_s)), site.watch.story(name)


async def served(streams: list[Stream]) -> None:
    ended = [await one.ended() for one in streams]
    broken = [one for one in ended if not one.whole]
    assert not broken, f"{len(broken)} of {len(ended)} streams, such as {broken[:3]}"


async def test_long_context_engines_start(site: Site) -> None:
    longest_steps_s.clear()
    for name in BOTH:
        await wait_until_up(site.replicas[name])
        await site.watch.back(name, after_s=0.0, limit_s=LIMIT_S)
    # Admission, retries and limits follow what was measured: first of short requests only.
    await served([site.stream(16) for _ in range(8)])


@pytest.mark.parametrize("tokens", LONG)
async def test_long_context_prompt_alone_is_served(site: Site, tokens: int) -> None:
    async with step_clocks(site) as clocks:
        began_s = time.monotonic()
        stream = await site.stream(4, prompt=prompt(tokens)).ended()
        note(site, f"{tokens} tokens alone: first token", stream.first_token_s)
        note(site, f"{tokens} tokens alone: longest step", max(one.longest_s for one in clocks.values()))
        await served([stream])
        assert_worked(site, BOTH, began_s)


async def test_long_context_prompts_among_short_ones_are_served(site: Site) -> None:
    shorts: list[Stream] = []
    long_done = asyncio.Event()

    async def client() -> None:
        while not long_done.is_set():
            shorts.append(await site.stream(16).ended())

    async with step_clocks(site) as clocks:
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as clients:
            for _ in range(4):
                clients.create_task(client())
            await eventually(lambda: len(shorts) >= 4, "short requests are answered")
            longs = [site.stream(4, prompt=prompt(tokens)) for tokens in LONG]
            for one in longs:
                await one.ended()
            long_done.set()
        for one, tokens in zip(longs, LONG, strict=True):
            note(site, f"{tokens} tokens among short ones: first token", one.first_token_s)
        note(site, "among short ones: longest step", max(one.longest_s for one in clocks.values()))
        note(site, f"{len(shorts)} short ones: slowest first token", max(one.first_token_s for one in shorts))
        await served([*longs, *shorts])
        assert_worked(site, BOTH, began_s)


async def test_long_context_engine_stopped_in_a_prefill_is_hung(site: Site) -> None:
    async with step_clocks(site) as clocks:
        stream = site.stream(4, prompt=prompt(15000))

        def reading() -> str:
            return next((name for name, clock in clocks.items() if clock.steps >= 3), "")

        name = await eventually(reading, "an engine reads the third chunk", limit_s=3 * LIMIT_S)
        clock = clocks[name]
        chunk_s = clock.longest_s
        await asyncio.sleep(clock.stepped_at_s + chunk_s / 2 - time.monotonic())
        stopped_at_s = time.monotonic()
        site.signal_core(name, signal.SIGSTOP)
        try:
            hung = await site.watch.verdict(name, "hung", after_s=stopped_at_s, limit_s=LIMIT_S)
            found_s = hung.at_s - stopped_at_s
            note(site, f"stopped in a chunk of {chunk_s:.1f} s: verdict hung", found_s)
            await stream.ended()
        finally:
            resumed_at_s = time.monotonic()
            site.signal_core(name, signal.SIGCONT)
        await site.watch.back(name, after_s=resumed_at_s, limit_s=LIMIT_S)
        if "longest recent step" in hung.evidence:
            # An agent that saw uneven steps; it may see them where this clock does not.
            chunk_s = longest_steps_s[name]
        limit_s = PREFILL_STALL_S + chunk_s + LOOKS_S + CONFIRMED_S + clock.longest_look_s
        assert found_s <= limit_s, site.watch.story(name)
        if site.settings.gate:
            note(site, "its prompt of 15000 tokens, read elsewhere: first token", stream.first_token_s)
            await served([stream])
        # The retry does not cost a second engine.
        assert_worked(site, tuple(one for one in BOTH if one != name), stopped_at_s)
