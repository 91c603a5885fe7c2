"""Lint: timeouts that contradict each other or cut healthy requests."""

import math
from collections.abc import Iterator
from typing import Final

from policies.findings import Finding
from policies.lints.lint_context import LintContext, PoolRule
from policies.quantity import format_duration as text
from policies.remote_prefill import Stage
from policies.resilience import WAIT_SHARE

_UNARY: Final = "spec.timeouts.nonStreaming"
_DEMAND: Final = (
    "spec.limits.maxConcurrent",
    "spec.limits.concurrentPerSlot",
    "spec.limits.maxWait",
    "spec.longestServiceTime",
    "spec.serviceTime",
)
"""Fields that set how long a healthy request waits and runs."""


def _total_below_tries(one: LintContext) -> Iterator[Finding]:
    per_try = one.spec.timeouts.non_streaming.per_try
    if per_try and one.tries * per_try > one.unary_deadline_s:
        yield one.policy(
            "SG101",
            "spec.timeouts.nonStreaming.total",
            f"{one.tries} tries of {text(per_try)} take {text(one.tries * per_try)}, "
            f"but the request ends after {text(one.unary_deadline_s)}",
            f"raise total to {text(one.tries * per_try)}, or lower perTry or retries.attempts",
            causes=(f"{_UNARY}.perTry", "spec.retries.attempts"),
        )


def _per_try_too_short(one: LintContext) -> Iterator[Finding]:
    per_try, path = one.spec.timeouts.non_streaming.per_try, "spec.timeouts.nonStreaming.perTry"
    if not per_try:
        return
    needed = one.wait_s + one.longest_s
    if per_try < one.longest_s:
        yield one.policy(
            "SG103",
            path,
            f"a try ends after {text(per_try)}, but a healthy answer may take {text(one.longest_s)}: "
            "long generations are aborted and repeated on other engines",
            f"raise perTry to {text(needed)}, or remove it",
        )
    elif per_try < needed:
        yield one.policy(
            "SG102",
            path,
            f"a try ends after {text(per_try)}, but a healthy one may wait {text(one.wait_s)} and then run "
            f"{text(one.longest_s)}: under load this can waste a quarter of the goodput",
            f"raise perTry to {text(needed)}, or lower limits.maxWait",
        )


def _total_too_short(one: LintContext) -> Iterator[Finding]:
    needed = one.wait_s + one.longest_s
    limits = (("streaming", "stream", one.stream_deadline_s), ("nonStreaming", "request", one.unary_deadline_s))
    for block, noun, total in limits:
        if total < needed:
            yield one.policy(
                "SG104",
                f"spec.timeouts.{block}.total",
                f"a {noun} ends after {text(total)}, but a healthy one may wait {text(one.wait_s)} and then run "
                f"{text(one.longest_s)}",
                f"raise total to at least {text(needed)}, or lower limits.maxWait",
                causes=_DEMAND,
            )


def _silence_too_short(one: LintContext) -> Iterator[Finding]:
    streaming = one.spec.timeouts.streaming
    # A prefill is one engine step, or a few; operators raise stallAfter for longer ones.
    step = one.pool.probe.step_s
    gated = one.pool.first_token_gate
    for name, limit, waits in (
        ("firstToken", streaming.first_token, True),
        ("betweenTokens", streaming.between_tokens, not gated),
    ):
        needed = step + (one.wait_s if waits else 0.0)
        if limit and limit < needed:
            queued = f"may wait {text(one.wait_s)} in the queue and " if waits else ""
            yield one.policy(
                "SG105",
                f"spec.timeouts.streaming.{name}",
                f"silence of {text(limit)} ends a stream, but a healthy one {queued}may be silent for "
                f"{text(step)} in one engine step",
                f"raise {name} above {text(needed)}, or lower limits.maxWait",
                causes=("spec.probe.stallAfter", *_DEMAND),
            )


def _wait_near_deadline(one: LintContext) -> Iterator[Finding]:
    deadline = min(one.stream_deadline_s, one.unary_deadline_s)
    most = WAIT_SHARE * (deadline - one.longest_s)
    if one.wait_s + one.longest_s <= deadline < math.inf and one.wait_s > most:
        yield one.policy(
            "SG106",
            one.limit_path,
            f"requests may wait {text(round(one.wait_s, 3))} of their {text(deadline)} and then run up to "
            f"{text(one.longest_s)}: if the service time is underestimated, answers come too late",
            f"limit the wait to {text(round(most, 3))}, 0.6 x (total - longest service time)",
            causes=(f"{_UNARY}.total", "spec.timeouts.streaming.total", *_DEMAND),
        )


def _drain_cuts_streams(one: LintContext) -> Iterator[Finding]:
    deadline = one.spec.drain.deadline
    if deadline < one.stream_deadline_s:
        longest = text(one.stream_deadline_s) if math.isfinite(one.stream_deadline_s) else "without limit"
        yield one.policy(
            "SG107",
            "spec.drain.deadline",
            f"a draining engine stops after {text(deadline)}, but its streams may last {longest}",
            "raise drain.deadline to streaming.total, or accept that a drain cuts the longest streams",
            causes=("spec.timeouts.streaming.total",),
        )


def _first_token_without_gate(one: LintContext) -> Iterator[Finding]:
    first = one.spec.timeouts.streaming.first_token
    # Proxies have no connection to prefill engines.
    if first and not one.pool.first_token_gate and one.pool.stage is not Stage.PREFILL:
        yield one.policy(
            "SG108",
            "spec.timeouts.streaming.firstToken",
            "without the first-token gate engines send headers before a token: Envoy allows the longer of "
            "firstToken and betweenTokens, then cuts the stream instead of retrying it",
            "install the gate and set firstTokenGate: true in the pool, or use betweenTokens",
            causes=("spec.firstTokenGate",),
        )


TIMING_RULES: Final[tuple[PoolRule, ...]] = (
    _total_below_tries,
    _per_try_too_short,
    _total_too_short,
    _silence_too_short,
    _wait_near_deadline,
    _drain_cuts_streams,
    _first_token_without_gate,
)
