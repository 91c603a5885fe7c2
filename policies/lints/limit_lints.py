"""Lint: valid limits, probes and ports that cause outages."""

from collections.abc import Iterator
from typing import Final

from policies.findings import Finding
from policies.lints.lint_context import LintContext, PoolRule, SetRule
from policies.model import PolicySet
from policies.quantity import format_duration as text

DEFAULT_PORTS: Final = {
    9901: "Envoy's admin port (`switchgear bootstrap --admin-port`)",
    18000: "the control plane's port for Envoys (`switchgear serve --listen`)",
    18001: "the control plane's admin port (`switchgear serve --admin`)",
    18011: "the agent's HTTP port (`switchgear-agent run --http`)",
    18012: "the agent's gRPC port (`switchgear-agent run --grpc`)",
    19001: "Envoy's health port in the chart and the manifests (`switchgear bootstrap --health-port`)",
}
"""Default ports of our processes, with the flag that sets them."""

_SHEDDING: Final = {429: "load shedding, not failure", 503: "load shedding, not failure"}
_NOT_IMPLEMENTED: Final = 501
_FIRST_OF_ENGINES: Final = 500


def _too_few_connections(one: LintContext) -> Iterator[Finding]:
    most = one.spec.limits.max_connections
    slots = one.slots or one.pool.slots_per_engine  # engines found by the cluster: at least one
    if most < slots:
        yield one.policy(
            "SG172",
            "spec.limits.maxConnections",
            f"with maxConnections {most} one Envoy fills {most} of {slots} slots, lets {most} more "
            f"{'request' if most == 1 else 'requests'} wait and refuses the rest with 503",
            f"raise maxConnections to {slots} or more, or remove it; the admission limit is set by limits.maxWait",
        )


def _failures_of_others(one: LintContext) -> Iterator[Finding]:
    breaker = one.spec.breaker
    kept = tuple(status for status in breaker.count_statuses if not _blame(status))
    for number, status in enumerate(breaker.count_statuses):
        if blame := _blame(status):
            yield one.policy(
                "SG173",
                f"spec.breaker.countStatuses[{number}]",
                f"{status} is {blame}: {_trigger(one)}",
                f"set countStatuses: [{', '.join(map(str, kept))}], or remove it (default 500, 502, 504)"
                if kept
                else "remove countStatuses (default 500, 502, 504)",
                causes=("spec.breaker.countStatuses",),
            )


def _blame(status: int) -> str:
    """Who causes this status if not a broken engine; empty for engines."""
    if status in _SHEDDING:
        return _SHEDDING[status]
    return "the caller's error" if status < _FIRST_OF_ENGINES or status == _NOT_IMPLEMENTED else ""


def _trigger(one: LintContext) -> str:
    """How many such answers eject an engine."""
    breaker = one.spec.breaker
    if breaker.consecutive_errors:
        answers = "answer" if breaker.consecutive_errors == 1 else "consecutive answers"
        return f"{breaker.consecutive_errors} {answers} with it eject a healthy engine"
    if breaker.error_rate_percent:
        return f"{breaker.error_rate_percent:g} % of answers with it eject a healthy engine"
    return "healthy engines count as failing"


def _probe_too_slow(one: LintContext) -> Iterator[Finding]:
    probe, streaming = one.pool.probe, one.spec.timeouts.streaming
    if not probe.enabled:
        return
    if probe.interval > probe.step_s:
        yield one.engines(
            "SG174",
            "spec.probe.interval",
            f"stallAfter promises to find a hang after {text(probe.step_s)}, but an engine is read every "
            f"{text(probe.interval)}: a hang may last {text(probe.interval + probe.step_s)}",
            f"lower interval to {text(probe.step_s)} or less, or raise stallAfter to {text(probe.interval)}",
        )
    found_s = probe.interval + probe.timeout
    limits = (("firstToken", streaming.first_token), ("betweenTokens", streaming.between_tokens))
    limit_s, name = min(((limit, name) for name, limit in limits if limit), default=(0.0, ""))
    if limit_s and found_s > limit_s:
        timeout_s = limit_s - probe.interval
        path, fix = (
            ("timeout", f"lower timeout to {text(round(timeout_s, 3))} or less")
            if timeout_s > 0
            else ("interval", f"lower interval to {text(limit_s / 4)} and timeout to {text(limit_s / 2)}")
        )
        yield one.engines(
            "SG174",
            f"spec.probe.{path}",
            f"a probe may need {text(probe.interval)} (interval) + {text(probe.timeout)} (timeout) = "
            f"{text(found_s)} to find an idle engine hung, but {name} cuts requests on it after {text(limit_s)}",
            f"{fix}, or raise timeouts.streaming.{name} above {text(found_s)}",
        )


def _ports_taken(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        port = route.spec.listener.port
        if owner := DEFAULT_PORTS.get(port):
            other = port + 80 if port + 80 not in DEFAULT_PORTS else port + 100
            yield Finding(
                code="SG139",
                origin=policies.origin("ModelRoute", name, "spec.listener.port"),
                path="spec.listener.port",
                message=f"route {name}: port {port} is by default {owner}: where both run on one host, Envoy "
                "cannot listen there and refuses the listener (NACK)",
                fix=f"use another port, such as {other}, or move the other process to another port",
            )


LIMIT_RULES: Final[tuple[PoolRule, ...]] = (_too_few_connections, _failures_of_others, _probe_too_slow)
PORT_RULES: Final[tuple[SetRule, ...]] = (_ports_taken,)
