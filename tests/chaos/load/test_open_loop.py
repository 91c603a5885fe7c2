"""The load generator against fake engines: what it sends, when, and what it makes of the answers."""

import asyncio
import itertools
import json
import re
import sys
import time

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from chaos.fake_engine import EngineCrash, EngineErrorAfterWork, EngineHang, EngineResetMidStream, EngineShed
from chaos.history.request_outcomes import OutcomeReason, RequestOutcome, outcome_summary
from chaos.load.open_loop import LoadProfile, poisson_arrivals, run_load
from chaos.load.request_sender import LoadTarget
from chaos.processes import ChildProcesses


def profile(*urls: str, **settings: object) -> LoadProfile:
    targets = tuple(LoadTarget(url=url, name=f"t{i}") for i, url in enumerate(urls or ["http://x"]))
    return LoadProfile(targets=targets, **{"rate_per_s": 100.0, "deadline_s": 90.0, **settings})  # type: ignore[arg-type]


async def run(load: LoadProfile, seconds: float = 0.5) -> list[RequestOutcome]:
    outcomes: list[RequestOutcome] = []
    await run_load(load, outcomes.append, seconds=seconds)
    return outcomes


def test_the_seed_decides_the_schedule() -> None:
    first, again, other = (
        list(itertools.islice(poisson_arrivals(profile(seed=seed, streaming_share=0.3)), 5000))
        for seed in (1, 1, 2)
    )
    assert first == again
    assert [a.at_s for a in first] != [a.at_s for a in other]
    assert first[-1].at_s == pytest.approx(50.0, rel=0.1)
    assert sum(a.streaming for a in first) / 5000 == pytest.approx(0.3, abs=0.05)
    assert len({a.request_id for a in first}) == 5000


def test_targets_and_lengths_are_drawn_by_weight() -> None:
    load = LoadProfile(
        targets=(LoadTarget(url="a", weight=3), LoadTarget(url="b", weight=1)),
        rate_per_s=1,
        max_tokens={8: 1, 64: 4},
    )
    drawn = list(itertools.islice(poisson_arrivals(load), 4000))
    assert sum(a.target.url == "a" for a in drawn) / 4000 == pytest.approx(0.75, abs=0.05)
    assert sum(a.max_tokens == 64 for a in drawn) / 4000 == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_tokens_of_good_answers_are_exact(path, start_engine) -> None:
    engines = [await start_engine(model="m", slots=99) for _ in range(2)]
    load = profile(*(e.url for e in engines), max_tokens={5: 1, 9: 1}, model="m", path=path)
    outcomes = await run(load)
    assert outcomes
    assert {o.reason for o in outcomes} == {OutcomeReason.OK}
    assert {o.streaming for o in outcomes} == {True, False}
    assert {o.target for o in outcomes} == {"t0", "t1"}
    assert {o.tokens for o in outcomes} == {5, 9}
    assert all((o.first_token_s is not None) == o.streaming for o in outcomes)
    assert all(o.first_token_s <= o.latency_s for o in outcomes if o.first_token_s)
    calls = [call for engine in engines for call in engine.book.calls]
    assert sorted(call.request_id for call in calls) == sorted(o.request_id for o in outcomes)


@pytest.mark.parametrize(
    ("fault", "whole", "stream"),
    [
        (EngineShed(), OutcomeReason.SHED, OutcomeReason.SHED),
        (EngineErrorAfterWork(), OutcomeReason.HTTP_ERROR, OutcomeReason.STREAM_ERROR),
        (EngineHang(), OutcomeReason.TIMEOUT, OutcomeReason.TIMEOUT),
        (EngineCrash(), OutcomeReason.RESET, OutcomeReason.RESET),
        (EngineResetMidStream(after_tokens=3), OutcomeReason.RESET, OutcomeReason.TRUNCATED),
    ],
)
async def test_each_fault_has_its_outcome_reason(fault, whole, stream, start_engine) -> None:
    engine = await start_engine(slots=99, token_s=0.02)
    await engine.set_fault(fault)
    # Only a hang is ended by the deadline; what ends by itself may take its time on a busy machine.
    deadline_s = 0.5 if isinstance(fault, EngineHang) else 90.0
    outcomes = await run(profile(engine.url, deadline_s=deadline_s))
    assert {o.reason for o in outcomes if not o.streaming} == {whole}
    assert {o.reason for o in outcomes if o.streaming} == {stream}


async def test_stream_without_done_is_truncated() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        # Who hangs up on a question that is not read resets the connection.
        await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
            b'data: {"choices":[{"text":" t1"}]}\n\n'
        )
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        outcomes = await run(profile(url, streaming_share=1.0), seconds=0.2)
    assert {(o.reason, o.tokens, o.status) for o in outcomes} == {(OutcomeReason.TRUNCATED, 1, 200)}


async def test_slow_and_fast_fleets_get_the_same_arrivals(start_engine) -> None:
    engine = await start_engine(slots=1, prefill_s=60.0)
    began = time.monotonic()
    outcomes = await run(profile(engine.url, deadline_s=1.0), seconds=0.5)
    planned = [a.at_s for a in itertools.takewhile(lambda a: a.at_s <= 0.5, poisson_arrivals(profile(engine.url)))]
    assert len(outcomes) == len(planned) > 20
    assert {o.reason for o in outcomes} == {OutcomeReason.TIMEOUT}
    assert all(o.latency_s >= 1.0 for o in outcomes)
    assert time.monotonic() - began < 50


async def test_late_generator_reports_its_lag(start_engine) -> None:
    engine = await start_engine(slots=99)
    asyncio.get_running_loop().call_later(0.1, time.sleep, 0.3)
    outcomes = await run(profile(engine.url))
    assert outcome_summary(outcomes).lag_max_s > 0.2
    late = [o for o in outcomes if o.lag_s > 0.1]
    assert late
    assert all(o.latency_s > o.lag_s for o in late)


async def test_fallback_and_refusal_headers_are_recorded() -> None:
    told = {"x-switchgear-fallback": "small"}
    refused = {"x-switchgear-reason": "overload"}

    async def answer(request: web.Request) -> web.Response:
        if (await request.json())["stream"]:
            return web.json_response({}, status=503, headers=refused)
        return web.json_response({"usage": {"completion_tokens": 1}}, headers=told)

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app) as server:
        outcomes = await run(profile(str(server.make_url("")).rstrip("/")))
    assert {(o.reason, o.fallback, o.refusal) for o in outcomes} == {
        (OutcomeReason.OK, "small", ""),
        (OutcomeReason.SHED, "", "overload"),
    }


async def test_stop_waits_for_sent_requests(start_engine) -> None:
    engine = await start_engine(slots=99)
    outcomes: list[RequestOutcome] = []
    stop = asyncio.Event()

    def enough(outcome: RequestOutcome) -> None:
        outcomes.append(outcome)
        if len(outcomes) == 5:
            stop.set()

    async with asyncio.timeout(60):
        await run_load(profile(engine.url), enough, stop=stop)
    assert {o.reason for o in outcomes} == {OutcomeReason.OK}
    assert len(outcomes) == engine.book.totals().arrived


async def test_command_prints_summary_and_returns_status(start_engine) -> None:
    engine = await start_engine(slots=99)
    argv = [sys.executable, "-m", "chaos.load", "--target", engine.url, "--seconds", "0.5"]
    async with ChildProcesses() as processes:
        good = await processes.start("load", [*argv, "--json"], ready_within_s=60)
        assert good.ready["reasons"] == {"ok": good.ready["requests"]}
        assert good.ready["generator_cpu_s"] > 0
        assert await good.wait() == 0
        await engine.set_fault(EngineShed())
        bad = await processes.start("bad", argv)
        assert await bad.wait() == 1
        assert "shed" in bad.tail()
        assert "{" not in bad.tail()
    assert json.dumps(dict(good.ready))
