"""Findings about what a policy did to its pool when it was played; the numbers come from who played it."""

from collections.abc import Sequence

from policies.findings import Finding
from policies.lints.lint_context import LintContext
from policies.quantity import format_duration

LIMITS = ("spec.limits.maxConnections", "spec.limits.maxConcurrent", "spec.limits.concurrentPerSlot")
"""Fields that keep requests from free slots, most likely first."""


def slots_out_of_reach(one: LintContext, *, served: int, slots: int) -> Finding:
    """Of as many requests at once as the pool has slots, this many were served."""
    path = _first_declared(one, LIMITS) or one.limit_path
    return one.policy(
        "SG180",
        path,
        f"with {_shown(one, path)} this pool serves {served} of {slots} requests at once, one per slot; "
        f"{slots - served} get 503",
        f"raise {_name(path)} to {slots} or more, or remove it"
        if path != "spec.limits.concurrentPerSlot"
        else "raise concurrentPerSlot to 1 or more, or remove it",
    )


def ejected_by_a_caller(one: LintContext, *, status: int, left: int, engines: int) -> Finding:
    """A loop of requests that engines answer with ``status`` left this many engines in rotation."""
    return one.policy(
        "SG181",
        "spec.breaker.countStatuses",
        f"a loop of {status}s by one caller leaves {left} of {engines} engines in rotation",
        f"remove {status} from countStatuses (default 500, 502, 504)",
    )


def hung_engine_kept(one: LintContext, *, after_s: float, played_s: float) -> Finding:
    """A hung engine stayed in rotation for ``after_s``, at most the ``played_s`` that it was hung."""
    how_long = f"{'at least ' if after_s >= played_s else ''}{format_duration(round(after_s, 1))}"
    probe = one.pool.probe
    promised = format_duration(probe.step_s)
    return one.engines(
        "SG182",
        "spec.probe.interval" if probe.enabled else "spec.probe.enabled",
        f"a hung engine stays in rotation for {how_long}; probe.stallAfter promises {promised}",
        f"lower probe.interval to {format_duration(probe.step_s / 4)}, and timeout below {promised}"
        if probe.enabled
        else "enable the probe",
    )


def restart_loses_requests(one: LintContext, *, good: float, possible: float) -> Finding:
    """With one engine restarting at 80 % load, ``good`` percent were served where ``possible`` could be."""
    path = _first_declared(one, (*LIMITS, "spec.retries.attempts")) or one.limit_path
    return one.policy(
        "SG183",
        path,
        f"one restart at 80 % load: {good:.0f} % of requests are served; the engines left can serve "
        f"{possible:.0f} %",
        f"raise or remove {_name(path)}",
    )


def _first_declared(one: LintContext, paths: Sequence[str]) -> str:
    return next((path for path in paths if one.declares(path)), "")


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def _shown(one: LintContext, path: str) -> str:
    limits = one.spec.limits
    values = {
        "maxConnections": f"{limits.max_connections}",
        "maxConcurrent": f"{limits.max_concurrent}",
        "concurrentPerSlot": f"{limits.concurrent_per_slot}",
        "maxWait": format_duration(limits.max_wait),
    }
    return f"{_name(path)} {values[_name(path)]}"
