"""Standings as a function of what was read and ordered: stories first, then what holds for every story."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.agent.agent_config import AgentConfig
from engine.agent.agent_engine_state import DrainOrder, EngineHealthState
from engine.agent.agent_report import report
from engine.agent.drain import IDLE_READINGS, UNWATCHED_QUIET_S, is_drained
from engine.agent.kubelet_probes import liveness, readiness, startup
from engine.agent.probe_schedule import COUNT_INTERVAL_S, canary_due, metrics_due, pause_s
from engine.engine_judgement import CONFIRM_S
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure, ProbeFailureReason
from engine.gpu.gpu_judgement import GpuEvidence, GpuJudgement
from engine.gpu.gpu_policy import GpuAction, GpuSignal
from engine.report import Doubt, Verdict
from engine.vllm_metrics import VllmCounters
from engine.watch_server import RemovalProgress

CONFIG = AgentConfig(slots=8)
GONE = ProbeFailure(trouble=ProbeFailureReason.REFUSED, detail="connection refused")
SILENT = ProbeFailure(trouble=ProbeFailureReason.SILENT, detail="no answer")
SHED = ProbeFailure(trouble=ProbeFailureReason.STATUS, status=503, detail="HTTP 503: busy")
ERROR = ProbeFailure(trouble=ProbeFailureReason.STATUS, status=500, detail="HTTP 500: worker failed")
CUDA = ProbeFailure(
    trouble=ProbeFailureReason.STATUS, status=500, detail="HTTP 500: CUDA error: device-side assert triggered"
)
OURS = ProbeFailure(trouble=ProbeFailureReason.OURS, detail="late")
CUT = ProbeFailure(trouble=ProbeFailureReason.CUT, detail="reset")
WRONG = ProbeFailure(trouble=ProbeFailureReason.STATUS, status=404, detail="no such model")

Event = MetricsReading | CanaryReading | float


def look(at_s: float, tokens: float = 100, running: int = 0, waiting: int = 0, **more: float) -> MetricsReading:
    counters = VllmCounters(
        generation_tokens=tokens,
        prompt_tokens=0,
        running=running,
        waiting=waiting,
        **{"first_tokens": tokens, **more},  # type: ignore[arg-type] # a test's numbers
    )
    return MetricsReading(at_s=at_s, counters=counters, in_flight=running + waiting)


def token(at_s: float) -> CanaryReading:
    return CanaryReading(sent_at_s=at_s, at_s=at_s + 0.01)


def failed(at_s: float, failure: ProbeFailure) -> CanaryReading:
    return CanaryReading(sent_at_s=at_s, at_s=at_s + 0.01, failure=failure)


def after(
    events: Iterable[Event], start: EngineHealthState | None = None, config: AgentConfig = CONFIG
) -> EngineHealthState:
    """The standing after these events; a bare number is the moment a token is asked for."""
    standing = start or EngineHealthState.new(config, 0.0)
    for event in events:
        standing = standing.canary_sent(event) if isinstance(event, float) else standing.after(event, config)
    return standing


READY = after([look(0.0), 0.0, token(0.0)])
WORKING = after([look(0.5, 200, 8), look(0.75, 300, 8)], READY)
"""Eight decodes: none waits for its first token."""


def test_refused_probe_is_misconfigured_and_repeats_before_it_counts() -> None:
    events: list[Event] = [look(0.5), 0.5, failed(0.5, WRONG)]
    once = after(events, READY)
    told = report(once, CONFIG, 1.0, model="", revision="", gpu=None)
    assert told is not None
    assert (told.verdict, told.doubt) == (Verdict.READY, None)
    twice = after([look(1.0), 1.0, failed(1.0, WRONG)], once)
    assert twice.verdict is Verdict.MISCONFIGURED
    told = report(twice, CONFIG, 1.0, model="", revision="", gpu=None)
    assert told is not None
    assert told.doubt is Doubt.REFUSED
    assert after([look(2.0), 2.0, token(2.0)], twice).verdict is Verdict.READY


def test_drain_of_an_engine_with_a_refused_probe_is_not_in_doubt() -> None:
    refused = after([look(0.0, tokens=0), 0.0, failed(0.0, WRONG)])
    assert refused.verdict is Verdict.MISCONFIGURED, "not starting: no probe can bring its first token"
    drained = refused.with_drain_order(DrainOrder(since_s=1.0, deadline_s=None), 1.0, CONFIG)
    told = report(drained, CONFIG, 1.0, model="", revision="", gpu=None)
    assert told is not None
    assert (told.verdict, told.doubt) == (Verdict.DRAINING, None)


def gpu(action: GpuAction, *, fixed_by_restart: bool = False) -> GpuJudgement:
    evidence = GpuEvidence(
        signal=GpuSignal.XID, action=action, rank=0, sentence="XID on rank 0", fixed_by_restart=fixed_by_restart
    )
    return GpuJudgement(
        action=action,
        evidence=(evidence,),
        worst_rank=0,
        statement="NVML available",
        wants_check=False,
        fixed_by_restart=fixed_by_restart,
    )


# -- stories ----------------------------------------------------------------------------------------------------


def test_verdict_changes_after_two_consecutive_readings() -> None:
    once = after([look(0.5), 0.5, failed(0.5, ERROR)], READY)
    assert once.verdict is Verdict.READY
    assert after([look(0.6), 0.6, failed(0.6, ERROR)], once).verdict is Verdict.DEGRADED
    assert after([look(0.6), 0.6, token(0.6), look(0.7), 0.7, failed(0.7, ERROR)], once).verdict is Verdict.READY


def test_repeated_reading_does_not_confirm_a_verdict() -> None:
    standing = after([look(0.5), 0.5, failed(0.5, ERROR), look(0.6), look(0.7), look(0.8)], READY)
    assert standing.verdict is Verdict.READY


def test_a_crash_needs_no_second_look() -> None:
    assert after([MetricsReading(at_s=0.5, counters=GONE)], READY).verdict is Verdict.DEAD


def test_busy_verdict_is_immediate_and_leaves_with_hysteresis() -> None:
    busy = after([look(0.5, 200, 8, 3)], READY)
    assert busy.verdict is Verdict.BUSY
    assert after([look(0.75, 300, 3)], busy).verdict is Verdict.BUSY
    assert after([look(0.75, 300, 3), look(1.0, 400, 8, 1), look(1.9, 500, 2)], busy).verdict is Verdict.BUSY
    assert after([look(0.75, 300, 3), look(1.8, 400, 3)], busy).verdict is Verdict.READY


def test_the_evidence_names_reading_threshold_and_since_when() -> None:
    hung = after([look(1.0, 300, 8), 1.0, look(1.85, 300, 8)], WORKING)
    assert hung.verdict is Verdict.HUNG
    told = hung.findings[0].evidence(1.85)
    assert (told.reading, told.threshold) == ("tokens", "token within 1 s while requests are in flight")
    assert told.age_s == pytest.approx(1.1)
    assert "7 requests" in told.sentence, "the one asked for by the agent is not counted"


def test_failures_of_others_count_as_damage_until_half_as_many_fail() -> None:
    quiet = look(0.0, finished=0.0, errors=0.0)
    failing = after([quiet, 0.0, token(0.0), look(1.0, 200, finished=40.0, errors=20.0)])
    assert failing.verdict is Verdict.DEGRADED
    assert failing.findings[0].reading == "errors"
    assert readiness(failing).yes, "tokens come: who knows only this engine lets it serve"
    less = after([look(2.0, 300, finished=80.0, errors=20.0)], failing)
    assert less.verdict is Verdict.DEGRADED
    assert after([look(3.0, 400, finished=160.0, errors=20.0)], less).verdict is Verdict.READY


def test_new_process_is_a_new_boot_even_without_an_observed_exit() -> None:
    old = after([look(0.0, started_at_s=1.0), 0.0, token(0.0)])
    new = after([look(0.5, tokens=0, started_at_s=2.0)], old)
    assert new.boot.number == old.boot.number + 1
    assert not startup(new, CONFIG).yes
    assert new.verdict is Verdict.STARTING
    assert after([0.6, token(0.6)], new).verdict is Verdict.READY


def test_counters_that_restart_are_a_new_boot_without_a_start_time() -> None:
    # Several API processes report no start time.
    old = after([look(0.0, tokens=100), 0.0, token(0.0), look(0.5, tokens=150)])
    new = after([look(1.0, tokens=0)], old)
    assert (old.boot.number, new.boot.number) == (1, 2)
    assert not startup(new, CONFIG).yes


def test_count_below_the_gauges_is_partial_after_three_readings() -> None:
    def short(at_s: float) -> MetricsReading:
        return replace(look(at_s, 100 + at_s, running=6, waiting=2, started_at_s=1.0), in_flight=3)

    once = after([short(0.0), short(0.5)])
    assert not once.count_is_partial
    partial = after([short(1.0)], once)
    assert partial.count_is_partial
    assert partial.in_flight == 8
    assert not after([look(1.5, 200, running=8, started_at_s=1.0)], partial).count_is_partial


def test_count_without_a_start_time_is_partial() -> None:
    # One process of several counts 0 while another has requests.
    now = after([replace(look(0.0, running=2), in_flight=0)])
    assert now.count_is_partial
    assert (now.in_flight, now.idle_readings) == (2, 0)
    # Frozen gauges with a larger count of one process.
    assert after([replace(look(0.5), in_flight=3)], now).in_flight == 3
    assert not after([look(0.0, started_at_s=1.0)]).count_is_partial
    assert not after([replace(look(0.0), in_flight=None)]).count_is_partial


def test_warm_up_is_for_engines_that_were_seen_to_start() -> None:
    config = replace(CONFIG, warm_up=(16, 32))
    born = after([look(0.0, tokens=0), 0.0, token(0.0)], config=config)
    assert (born.verdict, startup(born, config).yes) == (Verdict.STARTING, False)
    warm = born.warm_up_prompt_done(1.0, config).warm_up_prompt_done(2.0, config)
    assert (warm.verdict, startup(warm, config).yes) == (Verdict.READY, True)
    found = after([look(0.0, tokens=500), 0.0, token(0.0)], config=config)
    assert found.verdict is Verdict.READY


@pytest.mark.parametrize(
    ("action", "verdict", "may_have_traffic"),
    [
        (GpuAction.WATCH, Verdict.READY, True),
        (GpuAction.DEGRADE, Verdict.DEGRADED, True),
        (GpuAction.DRAIN, Verdict.DRAINING, False),
        (GpuAction.EJECT, Verdict.DEAD, False),
    ],
)
def test_gpu_action_decides_the_verdict(action: GpuAction, verdict: Verdict, may_have_traffic: bool) -> None:
    standing = READY.with_gpu(gpu(action), 1.0, CONFIG)
    assert standing.verdict is verdict
    assert readiness(standing).yes is may_have_traffic
    assert liveness(standing, CONFIG, 1000.0).yes, "tokens are produced: a restart would not help"


def test_a_hang_outdoes_a_drain_and_a_drain_outdoes_damage() -> None:
    drained_ = READY.with_drain_order(DrainOrder(since_s=1.0, deadline_s=None), 1.0, CONFIG)
    assert drained_.with_gpu(gpu(GpuAction.DEGRADE), 1.0, CONFIG).verdict is Verdict.DRAINING
    hung = after([look(1.5, 100, 2), look(2.0, 100, 2), 2.0, look(4.6, 100, 2)], drained_)
    assert hung.verdict is Verdict.HUNG
    assert liveness(hung, CONFIG, 1000.0).yes, "a drain ends in a restart anyway"
    assert hung.with_drain_order(None, 3.0, CONFIG).verdict is Verdict.HUNG


def test_an_engine_that_lost_its_gpu_is_dead_and_hung_once_its_tokens_stand_still() -> None:
    lost = READY.with_gpu(gpu(GpuAction.EJECT), 1.0, CONFIG)
    flowing = after([look(1.5, 200, 2), 1.5, token(1.5), look(2.0, 300, 2)], lost)
    assert flowing.verdict is Verdict.DEAD, "what still flows may end"
    stuck = after([2.0, look(2.5, 300, 3), look(3.1, 300, 3)], flowing)
    assert stuck.verdict is Verdict.HUNG
    assert stuck.findings[0].sentence.endswith("; XID on rank 0"), "the cause is named"
    assert [one.reading for one in stuck.findings] == ["tokens", "gpu.xid"]
    assert after([look(3.6, 400, 2)], stuck).verdict is Verdict.DEAD
    assert after([MetricsReading(at_s=3.6, counters=GONE)], stuck).verdict is Verdict.DEAD


# -- would a restart help? --------------------------------------------------------------------------------------

BROKEN = after([look(0.5), 0.5, failed(0.5, CUDA), look(0.6), 0.6, failed(0.6, CUDA)], READY)
HUNG = after(
    [look(0.5), 0.5, look(0.75, running=1), CanaryReading(sent_at_s=0.5, at_s=1.5, failure=SILENT), look(1.5)],
    READY,
)


def test_a_broken_context_is_worth_a_restart_when_it_lasts() -> None:
    assert BROKEN.verdict is Verdict.DEGRADED
    assert not readiness(BROKEN).yes
    assert liveness(BROKEN, CONFIG, 1.0).yes
    assert not liveness(BROKEN, CONFIG, 10.0).yes
    assert startup(BROKEN, CONFIG).yes


def test_a_plain_error_is_not() -> None:
    standing = after([look(0.5), 0.5, failed(0.5, ERROR), look(0.6), 0.6, failed(0.6, ERROR)], READY)
    assert standing.verdict is Verdict.DEGRADED
    assert liveness(standing, CONFIG, 1000.0).yes


def test_hang_verdict_needs_a_stall_beyond_its_timeout() -> None:
    assert HUNG.verdict is Verdict.HUNG
    assert liveness(HUNG, CONFIG, 50.0).yes
    assert not liveness(HUNG, CONFIG, 70.0).yes
    assert liveness(HUNG, replace(CONFIG, restart_after_hung_s=0.0), 1e6).yes


def test_an_xid_that_ends_a_context_explains_a_hang() -> None:
    assert not liveness(
        HUNG.with_gpu(gpu(GpuAction.DEGRADE, fixed_by_restart=True), 2.0, CONFIG), CONFIG, 10.0
    ).yes
    assert liveness(HUNG.with_gpu(gpu(GpuAction.EJECT), 2.0, CONFIG), CONFIG, 10.0).yes


def test_a_process_that_is_gone_is_for_its_owner_to_start() -> None:
    assert liveness(after([MetricsReading(at_s=0.5, counters=GONE)], READY), CONFIG, 1e6).yes


# -- draining ---------------------------------------------------------------------------------------------------


def removal(watchers: int = 1, heard: int = 1, total: int = 2, acknowledged: int = 2) -> RemovalProgress:
    return RemovalProgress(watchers=watchers, heard=heard, proxies_total=total, proxies_acknowledged=acknowledged)


def test_drain_completes_after_proxy_acks_no_requests_and_confirmation() -> None:
    ordered = READY.with_drain_order(DrainOrder(since_s=1.0, deadline_s=9.0), 1.0, CONFIG)
    assert not is_drained(ordered, removal(), 0.0)
    empty = after([look(1.0 + index / 10) for index in range(IDLE_READINGS)], ordered)
    assert is_drained(empty, removal(), 0.2)
    assert not is_drained(empty, removal(acknowledged=1), 0.2)
    assert not is_drained(empty, removal(watchers=2), 0.2)
    assert not is_drained(after([look(1.5, 200, 1)], empty), removal(), 0.2)
    assert not is_drained(after([MetricsReading(at_s=1.5, counters=SILENT)], empty), removal(), 0.2), "unknown"
    nobody = removal(0, 0, 0, 0)
    assert not is_drained(empty, nobody, UNWATCHED_QUIET_S / 2)
    assert is_drained(empty, nobody, UNWATCHED_QUIET_S)


# -- pace -------------------------------------------------------------------------------------------------------


def test_probe_interval_adapts_to_evidence() -> None:
    assert pause_s(READY, CONFIG, 0.1, look_s=0.005, counts=True) == CONFIG.idle_interval_s
    assert pause_s(READY, CONFIG, 0.1, look_s=0.005, counts=False) < CONFIG.idle_interval_s
    working = after([look(0.5, 200, 3)], READY)
    assert pause_s(working, CONFIG, 0.5, look_s=0.005, counts=True) == CONFIG.interval_s
    # An engine whose page takes long is asked less, but never so seldom that a hang is missed.
    assert pause_s(working, CONFIG, 0.5, look_s=0.02, counts=True) == pytest.approx(0.4)
    assert pause_s(working, CONFIG, 0.5, look_s=5.0, counts=True) <= CONFIG.probe.decode_stall_s / 2
    assert pause_s(working, CONFIG, 0.5, look_s=0.005, counts=True) <= COUNT_INTERVAL_S
    # The look that decides is not late, whatever it costs: at a standstill's limit, and the one that confirms.
    stands = after([look(0.6, 200, 3), look(1.3, 200, 3)], working)
    assert pause_s(stands, CONFIG, 1.3, look_s=5.0, counts=True) == pytest.approx(0.2)
    failed = after([MetricsReading(at_s=0.7, counters=GONE)], working)
    assert failed.judgement.bad_in_row == 1
    assert pause_s(failed, CONFIG, 0.7, look_s=5.0, counts=True) == CONFIRM_S
    asked = READY.canary_sent(0.1)
    assert pause_s(asked, CONFIG, 0.1, look_s=0.005, counts=True) == CONFIG.idle_interval_s, "it has its own limit"
    silent = after([CanaryReading(sent_at_s=0.1, at_s=1.1, failure=SILENT)], asked)
    over_s = 0.1 + silent.judgement.books.idle_limit_s(CONFIG.probe)
    assert pause_s(silent, CONFIG, over_s - 0.05, look_s=5.0, counts=True) == pytest.approx(0.05)
    assert not metrics_due(READY, 1.0, counts=True)
    assert metrics_due(READY, 1.0, counts=False)
    assert metrics_due(READY, 5.0, counts=True)


def test_no_canary_behind_queued_work_nor_to_a_draining_engine() -> None:
    assert canary_due(READY, CONFIG, 1.0, None)
    assert not canary_due(after([look(0.5, 200, 8)], READY), CONFIG, 0.5, None), "full"
    assert not canary_due(after([look(0.5, 200, 3)], READY), CONFIG, 0.5, 0.0), "moving, and asked just now"
    draining = READY.with_drain_order(DrainOrder(since_s=1.0, deadline_s=None), 1.0, CONFIG)
    assert not canary_due(after([look(1.0)], draining), CONFIG, 1.0, None)
    stuck = after([look(1.0, 100, 2), look(1.3, 100, 2)], draining)
    assert canary_due(stuck, CONFIG, 1.3, None), "whether it hangs is worth knowing"


# -- for every story --------------------------------------------------------------------------------------------


@settings(deadline=None)  # a slow machine must not fail it
@given(
    st.lists(
        st.tuples(
            st.floats(0.05, 0.9),  # until the next look: less than stall_after
            st.integers(1, 5000),  # tokens since
            st.integers(0, 64),
            st.integers(0, 500),
            st.floats(0, 1),  # KV cache
            st.sampled_from(["none", "answered", "silent", "shed", "ours"]),
        ),
        max_size=60,
    )
)
def test_engine_with_advancing_tokens_is_never_ejected_by_the_agent(
    steps: list[tuple[float, int, int, int, float, str]],
) -> None:
    standing, at_s, tokens = READY, 0.1, 100.0
    ends = {"answered": None, "silent": SILENT, "shed": SHED, "ours": OURS}
    for pause, more, running, waiting, kv_cache, canary in steps:
        at_s, tokens = at_s + pause, tokens + more
        standing = after([look(at_s, tokens, running, waiting, kv_cache_usage_ratio=kv_cache)], standing)
        assert standing.verdict in (Verdict.READY, Verdict.BUSY), standing.findings
        if canary != "none":
            standing = after(
                [at_s, CanaryReading(sent_at_s=at_s, at_s=at_s + 0.01, failure=ends[canary])], standing
            )
        assert standing.verdict in (Verdict.READY, Verdict.BUSY), standing.findings
        assert readiness(standing).yes
        assert liveness(standing, CONFIG, at_s + 1e6).yes


FAILURES = st.sampled_from([SHED, GONE, SILENT, OURS, ERROR, CUDA, CUT, WRONG])
READINGS = st.one_of(
    st.builds(
        lambda tokens, running, waiting: ("look", tokens, running, waiting),
        st.integers(0, 3),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    st.tuples(st.just("failed look"), st.sampled_from([GONE, SILENT, OURS])),
    st.tuples(st.just("answer"), st.none() | FAILURES),
)


@settings(deadline=None)  # a slow machine must not fail it
@given(st.lists(st.tuples(st.floats(0.01, 3.0), READINGS), max_size=60))
def test_every_story_has_a_verdict_with_evidence_and_three_answers(
    steps: list[tuple[float, tuple[object, ...]]],
) -> None:
    standing, at_s, tokens = EngineHealthState.new(CONFIG, 0.0), 0.0, 0.0
    was_good = False
    for pause, reading in steps:
        at_s += pause
        if reading[0] == "look":
            tokens += float(str(reading[1]))
            event: MetricsReading | CanaryReading = look(at_s, tokens, int(str(reading[2])), int(str(reading[3])))
        elif reading[0] == "failed look":
            event = MetricsReading(at_s=at_s, counters=reading[1])  # type: ignore[arg-type] # a failure
        else:
            event = CanaryReading(sent_at_s=at_s, at_s=at_s, failure=reading[1])  # type: ignore[arg-type]
            standing = standing.canary_sent(at_s)
        standing = standing.after(event, CONFIG)
        if standing.findings:
            assert standing.findings[0].sentence
            assert standing.findings[0].reading
            assert standing.verdict_since_s <= at_s
            if was_good and standing.verdict is Verdict.DEGRADED:
                assert standing.findings[0].reading in ("probe", "errors")
        else:
            assert not readiness(standing).yes
        was_good = standing.verdict is not None and standing.verdict.good
        if readiness(standing).yes:
            assert standing.verdict not in (Verdict.DEAD, Verdict.HUNG, Verdict.STARTING, Verdict.DRAINING)
            assert liveness(standing, CONFIG, at_s).yes
        if not standing.boot.heard:
            assert liveness(standing, CONFIG, at_s + 1e6).yes


@settings(deadline=None)  # a slow machine must not fail it
@given(st.lists(st.booleans(), max_size=40))
def test_single_errors_between_tokens_never_eject_an_engine(errors: list[bool]) -> None:
    standing, at_s = READY, 0.5
    for error in errors:
        at_s += 0.3
        first = failed(at_s, ERROR) if error else token(at_s)
        standing = after([look(at_s), at_s, first, look(at_s + 0.1), at_s + 0.1, token(at_s + 0.1)], standing)
        assert standing.verdict is Verdict.READY
