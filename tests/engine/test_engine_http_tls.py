"""Requests to one engine over TLS: its identity, blame for failures, and certificate rotation."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chaos.fake_engine import EngineConfig, EngineCrash, EngineHang, FakeEngine
from engine.engine_http import EngineHttp, EngineTarget, http_session
from engine.engine_judgement import EngineJudgement
from engine.engine_readings import MetricsReading, ProbeFailure, ProbeFailureReason
from engine.probe_settings import ProbeSettings
from engine.probe_state import ProbeState
from engine.report import Doubt, Verdict
from engine.tls.engine_trust import ClientTls, EngineIdentity, TrustError
from tests.engine.tls.certificate_fixtures import DAY, certificate, means, odd_certificate, swapped

NAME = "engine.example"


@contextlib.asynccontextmanager
async def engine(folder: Path, name: str, *, client_ca: bool = False) -> AsyncIterator[FakeEngine]:
    """A fake engine with a certificate of the folder; without a name, one that speaks plain HTTP."""
    tls: dict[str, Any] = (
        {"tls_cert": str(folder / f"{name}.crt"), "tls_key": str(folder / f"{name}.key")} if name else {}
    )
    authorities: dict[str, Any] = {"tls_client_ca": str(folder / "ca.crt")} if client_ca else {}
    one = FakeEngine(EngineConfig(prefill_s=0.01, **tls, **authorities))
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


@contextlib.asynccontextmanager
async def showing(folder: Path, name: str) -> AsyncIterator[int]:
    """A port that shows a certificate whatever it says, which a fake engine would not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def asked(
    port: int,
    means: Callable[[], ClientTls],
    *,
    name: EngineIdentity = EngineIdentity(server_name=NAME),  # noqa: B008 - frozen
    wall: Callable[[], float] = time.time,
) -> AsyncIterator[EngineHttp]:
    target = EngineTarget(
        address="127.0.0.1", port=port, model="fake-model", probe=ProbeSettings(timeout_s=20.0), name=name
    )
    async with http_session() as http:
        yield EngineHttp(http, target, time.monotonic, lambda _: False, means=means, wall=wall)


async def trouble(
    port: int, means: Callable[[], ClientTls], *, wall: Callable[[], float] = time.time
) -> ProbeFailure:
    """What comes of a look and of a canary, which is the same."""
    async with asked(port, means, wall=wall) as one:
        look, answer = await one.read_metrics(), await one.send_canary("x")
    assert isinstance(look.counters, ProbeFailure)
    assert answer.failure is not None
    assert answer.failure.trouble is look.counters.trouble
    return look.counters


async def test_an_engine_that_proves_its_name_is_asked_as_any_other(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", NAME)
    async with engine(tmp_path, "engine") as one, asked(one.port, means(tmp_path)) as http:
        assert not isinstance((await http.read_metrics()).counters, ProbeFailure)
        assert (await http.send_canary("x")).failure is None
        tripped = asyncio.create_task(http.wait_disconnected())
        await asyncio.sleep(0)
        assert not tripped.done()
        await one.stop()
        await asyncio.wait_for(tripped, 30)


async def test_hung_engine_does_not_block_cancellation(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", NAME)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "engine.crt", tmp_path / "engine.key")
    listening = socket.create_server(("127.0.0.1", 0))

    def shake_hands() -> ssl.SSLSocket:
        return context.wrap_socket(listening.accept()[0], server_side=True)

    async with asked(listening.getsockname()[1], means(tmp_path)) as http:
        tripwire = asyncio.create_task(http.wait_disconnected())
        hung = await asyncio.to_thread(shake_hands)
        for _ in range(10):  # our side is closed and only has to notice
            await asyncio.sleep(0)
        tripwire.cancel()
        done, _ = await asyncio.wait([tripwire], timeout=15)  # TLS would wait for its farewell twice as long
        hung.close()
        listening.close()
    assert done


async def test_without_a_name_its_address_is_what_it_has_to_prove(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", "127.0.0.1")
    certificate(tmp_path, "other", NAME)
    async with engine(tmp_path, "engine") as one, asked(one.port, means(tmp_path), name=EngineIdentity()) as http:
        assert (await http.send_canary("x")).failure is None
    async with engine(tmp_path, "other") as one, asked(one.port, means(tmp_path), name=EngineIdentity()) as http:
        failure = (await http.send_canary("x")).failure
        assert failure is not None
        assert (
            f"its certificate is for spiffe://switchgear.lab/engine, {NAME}, not for 127.0.0.1" in failure.detail
        )


async def test_certificate_san_must_match_the_policy_names(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", "a.pool.svc", path="engine/a")
    async with engine(tmp_path, "engine") as one:
        for alt_name in ("*.pool.svc", "spiffe://switchgear.lab/engine/*"):
            async with asked(one.port, means(tmp_path, alt_name)) as http:
                assert (await http.send_canary("x")).failure is None, alt_name
        failure = await trouble(one.port, means(tmp_path, "*.other.svc", "spiffe://x/**"))
    assert failure.trouble is ProbeFailureReason.UNTRUSTED
    assert "not for *.other.svc or spiffe://x/**" in failure.detail


async def test_certificate_errors_are_described(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    certificate(ours, "engine", NAME)
    certificate(ours, "old", NAME, ago=3 * DAY)
    certificate(ours, "early", NAME, ago=-3 * DAY)
    certificate(theirs, "strange", NAME)
    for folder, name, words in (
        (ours, "old", "has expired"),
        (ours, "early", "is not valid yet, or a clock is wrong"),
        (theirs, "strange", "is from an untrusted CA"),
        (ours, "", "no TLS"),
    ):
        async with engine(folder, name) as one:
            failure = await trouble(one.port, means(ours))
        assert failure.trouble is ProbeFailureReason.UNTRUSTED, name
        assert f"127.0.0.1:{one.port}: " in failure.detail
        assert words in failure.detail, name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (b"\xff\xfe.example", "undecodable names"),
        (b"engine.example\0.evil", r"is for engine.example\x00.evil, not for engine.example"),
        (b"a\n\x1b[31mb", r"is for a\n\x1b[31mb, not for engine.example"),
    ],
)
async def test_hostile_names_crash_no_prober_and_print_no_control_characters(
    tmp_path: Path, name: bytes, words: str
) -> None:
    odd_certificate(tmp_path, "engine", name)
    async with showing(tmp_path, "engine") as port, asked(port, means(tmp_path)) as http:
        failure = (await http.read_metrics()).counters
        assert isinstance(failure, ProbeFailure)
        assert failure.trouble is ProbeFailureReason.UNTRUSTED
        assert words in failure.detail
        assert failure.detail.isprintable()
        # Waits for the end of a connection, on a certificate that may be another than at the last look.
        await http.wait_disconnected()


async def test_engine_requiring_mtls_gets_a_client_certificate(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", NAME)
    certificate(tmp_path, "prober", "prober")
    async with engine(tmp_path, "engine", client_ca=True) as one:
        async with asked(one.port, means(tmp_path, proof="prober")) as http:
            assert (await http.send_canary("x")).failure is None
        failure = await trouble(one.port, means(tmp_path))
    assert failure.trouble is ProbeFailureReason.UNTRUSTED
    assert "without an answer; it may refuse our certificate" in failure.detail


async def test_our_own_certificates_that_are_over_are_our_own_fault(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", NAME)
    certificate(tmp_path, "old", NAME, ago=3 * DAY)
    years_s = timedelta(days=3650).total_seconds()
    async with engine(tmp_path, "old") as one:
        failure = await trouble(one.port, means(tmp_path), wall=lambda: time.time() + years_s)
    assert failure.trouble is ProbeFailureReason.OURS
    assert "our own certificates for it have expired" in failure.detail


async def test_with_nothing_to_speak_tls_by_nothing_counts_against_the_engine(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", NAME)

    def nothing() -> ClientTls:
        raise TrustError("no certificates called 'x'")

    async with engine(tmp_path, "engine") as one:
        failure = await trouble(one.port, nothing)
        assert failure.trouble is ProbeFailureReason.OURS
        assert failure.detail == "no certificates called 'x'"
        async with asked(one.port, nothing) as http:
            await asyncio.wait_for(http.wait_disconnected(), 30)


async def test_new_connections_use_new_certificates_and_open_ones_continue(tmp_path: Path) -> None:
    """On both sides: the engine's certificate, and the authorities that verify it."""
    certificate(tmp_path, "engine", NAME)
    certificate(tmp_path, "next", NAME)
    certificate(tmp_path, "stranger", "stranger.example")
    async with engine(tmp_path, "engine") as one, asked(one.port, means(tmp_path)) as http:
        assert (await http.send_canary("x")).failure is None
        with swapped(tmp_path, "engine", "stranger"):
            # The connection of before is still there.
            assert (await http.send_canary("x")).failure is None
            refused = await trouble(one.port, means(tmp_path))
            assert refused.trouble is ProbeFailureReason.UNTRUSTED
        with swapped(tmp_path, "engine", "next"):
            async with asked(one.port, means(tmp_path)) as anew:
                assert (await anew.send_canary("x")).failure is None
        # Other authorities: the next question is asked on a new connection, and judged by them.
        certificate(tmp_path / "others", "engine", NAME)
        kept = [means(tmp_path)]
    now = lambda: kept[0]()  # noqa: E731, PLW0108 - another one later
    async with engine(tmp_path / "others", "engine") as one, asked(one.port, now) as http:
        assert (await http.send_canary("x")).failure is not None
        kept[0] = means(tmp_path / "others")
        assert (await http.send_canary("x")).failure is None


async def test_tls_failure_is_soft_evidence_and_pool_wide_failure_is_distrusted(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", "stranger.example")
    probe = ProbeSettings()
    judgement = EngineJudgement(books=ProbeState(slots=8))
    async with engine(tmp_path, "engine") as one, asked(one.port, means(tmp_path)) as http:
        look = await http.read_metrics()
        judgement = judgement.after(look, probe)
        assert judgement.verdict is Verdict.DEGRADED
        assert judgement.doubt is Doubt.REFUSED
        assert not judgement.wants_canary
        assert "is not trusted" in judgement.evidence
        answered = judgement.canary_sent(look.at_s).after(await http.send_canary("x"), probe)
        assert (answered.verdict, answered.doubt) == (Verdict.DEGRADED, Doubt.REFUSED)
    # A silent engine is not dead at once: it answered a moment ago.
    silent = MetricsReading(
        at_s=look.at_s + 1, counters=ProbeFailure(trouble=ProbeFailureReason.SILENT, detail="no answer")
    )
    assert judgement.after(silent, probe).verdict is not Verdict.DEAD


@pytest.mark.parametrize("known", [True, False])
def test_local_failure_leaves_the_verdict_unchanged(known: bool) -> None:
    probe = ProbeSettings()
    judgement = EngineJudgement(books=ProbeState(slots=8))
    if known:
        gone = ProbeFailure(trouble=ProbeFailureReason.REFUSED, detail="refused")
        judgement = judgement.after(MetricsReading(at_s=1.0, counters=gone), probe)
    ours = MetricsReading(
        at_s=2.0, counters=ProbeFailure(trouble=ProbeFailureReason.OURS, detail="our certificates have expired")
    )
    assert judgement.after(ours, probe).verdict is (Verdict.DEAD if known else None)
    assert not judgement.after(ours, probe).fresh


async def test_a_process_that_ends_is_gone_and_not_untrusted(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", NAME)
    async with engine(tmp_path, "engine") as one, asked(one.port, means(tmp_path)) as http:
        assert (await http.send_canary("x")).failure is None
        await one.set_fault(EngineHang())
        held = asyncio.create_task(http.send_canary("y"))
        while not one.calls_in_flight:
            await asyncio.sleep(0.01)
        await one.set_fault(EngineCrash())
        failure = (await held).failure
        look = await http.read_metrics()
    assert failure is not None
    assert failure.trouble is ProbeFailureReason.CUT
    assert isinstance(look.counters, ProbeFailure)
    assert look.counters.trouble is ProbeFailureReason.REFUSED
