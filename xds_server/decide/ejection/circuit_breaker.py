"""The fleet-wide circuit breaker of one engine: opens on its error rate, closes on proof.

*Closed*: it watches the newest calls. *Open*: it ejects the engine until the cooldown ends, or until enough
canaries in a row, sent after the opening, returned a token. *Trial*: the engine gets a share of real requests, and
their results decide.

Calls from before the last phase change do not count: failures reported late must not eject an engine again. Hard
evidence (dead, hung) explains the failures of its time, so it resets the counts; the verdict alone ejects the
engine. Without telemetry the state does not change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from engine.report import EngineReport
from policies.resilience import Breaker
from xds_server.decide.decision_memory import BreakerState
from xds_server.decide.decisions import BreakerPhase
from xds_server.decide.ejection.peer_failures import PeerFailures, beyond_chance, worst_run
from xds_server.model.backoff import ExponentialBackoff
from xds_server.model.pool_traffic import WINDOW_S, EngineTraffic

PROOFS: Final = 1
"""Canaries in a row that end the first opening; each further opening needs twice as many.

With two, a recovered engine had its full share only after 1.0 to 1.3 s, and the trial decides anyway.
"""

MAX_PROOFS: Final = 64
"""About 15 s of canaries: a partly failing engine must not pass by luck, nor stay ejected forever."""

TRIAL_S: Final = 0.5
"""A first trial without a failure ends after this."""

MAX_TRIAL_S: Final = 10.0
"""A trial without a failure ends after this, however few calls it got: answers may take minutes."""

# Fewer may be one caller who retries a bad prompt, even if the other engines have no failures.
_FEWEST_FAILURES: Final = 3

# A trial fails after this many failed calls: one may be the request's own fault.
_TRIAL_FAILURES: Final = 2

_OPENING_CALLS: Final = 4.0
"""Weight, in calls, of the failure rate that opened a breaker against what ended since."""

NEW_BREAKER: Final = BreakerState()


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerInputs:
    """What is known of one engine now.

    ``traffic`` is None without fresh telemetry.
    ``settled``: hard evidence or an order already decides. ``kept_out``: its verdict alone ejects it.
    ``expected_per_s`` is the calls per second that the engine would get at its full share. ``peers`` are the
    results of calls to engines in rotation, its own (under ``name``) included.
    """

    traffic: EngineTraffic | None
    report: EngineReport | None
    settled: bool = False
    kept_out: bool = False
    expected_per_s: float = 0.0
    name: str = ""
    peers: PeerFailures | None = None


def proofs_needed(opens: int) -> int:
    """Canaries in a row that end the opening of this number: 1, 2, 4, ... 64."""
    return int(min(MAX_PROOFS, PROOFS * 2 ** min(max(0, opens - 1), 16)))


def cooldown_s(first_s: float, most_s: float, opens: int) -> float:
    """Cooldown of the opening of this number, without proof."""
    return ExponentialBackoff(first_s=first_s, most_s=max(first_s, most_s)).wait_s(opens)


def has_no_failures(state: BreakerState | None, traffic: EngineTraffic | None) -> bool:
    """Whether there is nothing to decide: no state, and no failure among the newest calls."""
    return state is None and (traffic is None or not (traffic.window_failures or traffic.failures_in_a_row))


def next_breaker_state(
    before: BreakerState | None, policy: Breaker, seen: BreakerInputs, now_s: float
) -> BreakerState | None:
    """The next state: None when nothing is worth remembering, the same object when nothing changed."""
    if not policy.error_rate_percent and not policy.consecutive_errors:
        return None
    state = NEW_BREAKER if before is None else before
    report = seen.report
    boot = f"{report.source}/{report.boot_id}" if report is not None and report.boot_id else ""
    if seen.settled or _restarted(state.boot, boot):
        return _cleared(state, seen, boot, now_s)
    if boot and not state.boot:
        state = replace(state, boot=boot) if before is not None else state
    if state.phase is BreakerPhase.OPEN:
        return _open(state, seen, now_s)
    if state.phase is BreakerPhase.TRIAL:
        return _trial(state, policy, seen, now_s)
    return _closed(state, policy, seen, boot, now_s)


def _restarted(known: str, boot: str) -> bool:
    """Whether the same reporter now reports another process than the breaker knows."""
    return bool(known and boot) and known != boot and known.partition("/")[0] == boot.partition("/")[0]


def _cleared(state: BreakerState, seen: BreakerInputs, boot: str, now_s: float) -> BreakerState | None:
    """Closed with reset counts; the number of openings is kept."""
    traffic = seen.traffic
    succeeded = state.succeeded if traffic is None else traffic.reported_successes
    failed = state.failed if traffic is None else traffic.reported_failures
    if not state.opens and not succeeded and not failed:
        return None
    same = state.phase is BreakerPhase.CLOSED and state.boot == boot
    if same and (state.succeeded, state.failed) == (succeeded, failed):
        return state
    return BreakerState(since_s=now_s, opens=state.opens, succeeded=succeeded, failed=failed, boot=boot)


def _closed(
    state: BreakerState, policy: Breaker, seen: BreakerInputs, boot: str, now_s: float
) -> BreakerState | None:
    traffic = seen.traffic
    if traffic is not None and (
        traffic.reported_successes < state.succeeded or traffic.reported_failures < state.failed
    ):
        state = replace(state, succeeded=0, failed=0)  # the counter was reset
    if traffic is not None:
        failing, why = _failing(state, policy, traffic, seen)
        if why:
            return open_breaker(state, policy, traffic, failing=failing, why=why, boot=boot, now_s=now_s)
    well_s = now_s - state.since_s
    if state.opens and well_s >= cooldown_s(policy.cooldown, policy.max_cooldown, state.opens):
        state = replace(state, opens=0)
    # Counts matter only while the window may still hold older calls.
    return state if state.opens or (state.since_s and well_s < WINDOW_S) else None


def _failing(
    state: BreakerState, policy: Breaker, traffic: EngineTraffic, seen: BreakerInputs
) -> tuple[float, str]:
    """The failure rate of a closed breaker, and why it opens; empty when it does not."""
    failed = traffic.reported_failures - state.failed
    calls = traffic.reported_successes - state.succeeded + failed
    in_row = min(traffic.failures_in_a_row, failed)
    newest = min(traffic.window_calls, calls)
    failures = min(traffic.window_failures, failed, newest)
    rate = failures / newest if newest else 0.0
    peers = seen.peers if policy.weigh_peers else None
    around = None if peers is None else peers.others(seen.name)
    # Without any failure elsewhere, nothing excuses this engine.
    usual = peers.best_of(seen.name).rate if peers is not None and peers.any_failed(seen.name) else 0.0
    if (
        policy.error_rate_percent
        and newest >= policy.min_calls
        and 100 * rate >= policy.error_rate_percent
        and (not usual or beyond_chance(failures, newest, usual))
    ):
        return rate, (
            f"{failures} of its last {newest} calls failed ({100 * rate:.0f} %; limit "
            f"{policy.error_rate_percent:g} % of at least {policy.min_calls})"
        )
    in_row_counts = policy.consecutive_errors and in_row >= policy.consecutive_errors
    if in_row_counts and (not usual or beyond_chance(in_row, in_row, usual)):
        return 1.0, f"{in_row} calls in a row failed (limit {policy.consecutive_errors})"
    if around is not None and failures >= _FEWEST_FAILURES:
        share = (policy.error_rate_percent or 100.0) / 100
        worst = worst_run(traffic.newest_failed, newest, share, around.rate)
        if worst is not None and worst.failed >= _FEWEST_FAILURES:
            return worst.failed / worst.calls, (
                f"{worst.failed} of its last {worst.calls} calls failed, but only {around.failed} of "
                f"{around.calls} on its peers"
            )
    return rate, ""


def open_breaker(
    state: BreakerState,
    policy: Breaker,
    traffic: EngineTraffic,
    *,
    failing: float,
    why: str,
    boot: str,
    now_s: float,
) -> BreakerState:
    """The breaker, opened once more."""
    opens = state.opens + 1
    return BreakerState(
        phase=BreakerPhase.OPEN,
        since_s=now_s,
        until_s=now_s + cooldown_s(policy.cooldown, policy.max_cooldown, opens),
        opens=opens,
        succeeded=traffic.reported_successes,
        failed=traffic.reported_failures,
        failing=failing,
        why=why,
        boot=boot,
    )


def ability(state: BreakerState, traffic: EngineTraffic | None) -> float:
    """Share of calls that an engine with an open breaker answers.

    The calls that opened it may include good ones from before the fault, so what ended since then counts more:
    requests in flight at the ejection, and those that an engine kept in rotation still gets.
    """
    succeeded = failed = 0
    if traffic is not None:
        succeeded = max(0, traffic.reported_successes - state.succeeded)
        failed = max(0, traffic.reported_failures - state.failed)
    failing = _OPENING_CALLS * state.failing + failed
    return max(0.0, 1 - failing / (_OPENING_CALLS + succeeded + failed))


def canary_proofs(count: int, last_at_s: float, since_s: float, report: EngineReport | None) -> tuple[int, float]:
    """Successful canaries in a row since ``since_s`` and the time of the newest, after one more report."""
    canary = None if report is None else report.canary
    if canary is None or canary.at_s <= since_s:
        return 0, last_at_s
    more = 1 if canary.at_s > max(since_s, last_at_s) else 0
    return min(canary.in_row, count + more), max(last_at_s, canary.at_s)


def _open(state: BreakerState, seen: BreakerInputs, now_s: float) -> BreakerState:
    proofs, proof_at_s = canary_proofs(state.proofs, state.proof_at_s, state.since_s, seen.report)
    if seen.report is not None and not seen.report.verdict.good:
        proofs = 0
    well = proofs >= proofs_needed(state.opens)
    if (well or now_s >= state.until_s) and not seen.kept_out:
        traffic = seen.traffic
        return replace(
            state,
            phase=BreakerPhase.TRIAL,
            since_s=now_s,
            until_s=now_s + MAX_TRIAL_S,
            succeeded=state.succeeded if traffic is None else traffic.reported_successes,
            failed=state.failed if traffic is None else traffic.reported_failures,
            proofs=proofs,
            proof_at_s=proof_at_s,
        )
    if (proofs, proof_at_s) == (state.proofs, state.proof_at_s):
        return state
    return replace(state, proofs=proofs, proof_at_s=proof_at_s)


def _trial(state: BreakerState, policy: Breaker, seen: BreakerInputs, now_s: float) -> BreakerState | None:
    traffic, lasted_s = seen.traffic, now_s - state.since_s
    if traffic is None:
        # No telemetry: unknown results eject no engine.
        return _passed(state, seen, now_s) if lasted_s >= MAX_TRIAL_S else state
    if traffic.reported_successes < state.succeeded or traffic.reported_failures < state.failed:
        return replace(
            state, succeeded=traffic.reported_successes, failed=traffic.reported_failures, since_s=now_s
        )
    succeeded, failed = traffic.reported_successes - state.succeeded, traffic.reported_failures - state.failed
    rate = failed / (succeeded + failed) if failed else 0.0
    if failed >= _TRIAL_FAILURES and (100 * rate >= (policy.error_rate_percent or 100.0)):
        why = f"{failed} of {succeeded + failed} trial calls failed (limit {policy.error_rate_percent or 100:g} %)"
        return open_breaker(state, policy, traffic, failing=rate, why=why, boot=state.boot, now_s=now_s)
    enough = succeeded >= policy.trial_calls * min(state.opens, 4)
    # One good call is enough for an engine that returned by proof and never relapsed.
    calm = not failed and lasted_s >= TRIAL_S and state.opens <= 1
    idle = seen.expected_per_s * policy.trial_share_percent / 100 * lasted_s < 1
    if enough or (calm and (succeeded or idle)) or (not failed and lasted_s >= MAX_TRIAL_S):
        return _passed(state, seen, now_s)
    return state


def _passed(state: BreakerState, seen: BreakerInputs, now_s: float) -> BreakerState:
    traffic = seen.traffic
    return BreakerState(
        since_s=now_s,
        opens=state.opens,
        succeeded=state.succeeded if traffic is None else traffic.reported_successes,
        failed=state.failed if traffic is None else traffic.reported_failures,
        boot=state.boot,
    )


def recovery_condition(state: BreakerState, policy: Breaker) -> str:
    """What returns the engine to rotation, in words."""
    if state.phase is BreakerPhase.OPEN:
        lasts_s = cooldown_s(policy.cooldown, policy.max_cooldown, state.opens)
        needed = proofs_needed(state.opens)
        proof = "1 successful canary" if needed == 1 else f"{needed} successful canaries in a row"
        return (
            f"{proof}, or {lasts_s:g} s after its ejection; then a trial with {policy.trial_share_percent:g} % of "
            "its traffic"
        )
    return f"{policy.trial_calls * min(state.opens, 4)} successful trial calls; failures end the trial, too"


def expected_per_s(traffic: Mapping[str, EngineTraffic], engines: int) -> float:
    """Mean calls per second of one of this many engines."""
    return sum(one.done_per_s for one in traffic.values()) / engines if engines else 0.0
