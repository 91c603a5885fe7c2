"""Fit the tenants and the deadline of a listener to a scenario's groups of callers. Pure.

Quotas and deadlines are for fleets of another size and speed, so a scenario says how many times its quota a tenant
asks for, and how many service times a caller waits.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from chaos.load.request_sender import Arrival, LoadTarget, RequestTemplate
from chaos.scenario.experiment_plan import Experiment
from chaos.scenario.scenario_model import CallerGroup, LoadSpec, is_large
from policies.deadline import DeadlineForm
from policies.listener import Listener
from policies.quantity import format_duration
from policies.route import ModelRoute
from policies.tenants import BYTES_PER_TOKEN, Quota, QuotaUnit, Tenants

TENANT_HEADER: Final = "x-tenant"
"""Header with the tenant's name for subjects without tenants."""

DEADLINE_HEADER: Final = "x-request-timeout-ms"
"""Header with the deadline for subjects without one."""

LONGEST_BURST_S: Final = 1.0
"""Longest burst in the lab, in seconds of the quota: with more, a run would end before a quota limits anyone."""

_LEAST_BURST: Final = 2
"""Least burst at each proxy, in requests. With 1, a part of the quota is lost whenever no request is at hand."""

_AMPLE: Final = 2.0
"""Multiple of a tenant's requests to which the quota that is not tested is set."""


def group_headers(load: LoadSpec, service_s: float, listener: Listener | None) -> Mapping[str, Mapping[str, str]]:
    """Headers of the requests of each group of callers; ``listener`` is None for subjects without policies."""
    tenants = None if listener is None else listener.tenants
    names = {}
    if load.tenants and tenants is not None:
        names = {one.name: named.name for one, named in zip(load.tenants, tenants.named, strict=False)}
    found: dict[str, dict[str, str]] = {one.name: {} for one in load.callers}
    for one in load.callers:
        if one in load.tenants:
            found[one.name][TENANT_HEADER if tenants is None else tenants.header] = names.get(one.name, one.name)
        if one.times_service is not None:
            found[one.name] |= _deadline_header(listener, one.times_service * service_s)
    return found


def lacking_limits(load: LoadSpec, listener: Listener, routes: Iterable[ModelRoute]) -> str:
    """What the listener and its routes lack for these callers; empty if nothing."""
    named = () if listener.tenants is None else listener.tenants.named
    if len(named) < len(load.tenants):
        return f"{len(load.tenants)} named tenants, and the route has {len(named) or 'none'}"
    without = [
        named[place].name
        for place, one in enumerate(load.tenants)
        if one.unit == "tokens" and named[place].tokens is None
    ]
    if without:
        return f"quotas of tokens, and these tenants have none: {', '.join(without)}"
    shared = [one for one in load.tenants if one.times_share is not None]
    if shared and (listener.tenants is None or not listener.tenants.fair_shares):
        return "fair shares, and the route's tenants have none"
    if any(map(is_large, load.callers)) and not any(one.spec.match.tokens_above for one in routes):
        return "a route for large requests, and none has match.tokensAbove"
    has_deadlines = any(one.times_service is not None for one in load.callers)
    return "a deadline, and the route's listener has none" if has_deadlines and listener.deadline is None else ""


def caller_limits(
    listener: Listener, experiment: Experiment, asking: RequestTemplate, time_scale: float
) -> dict[str, Any]:
    """The fields of the lab's listener that limit callers, as far as the scenario tests them."""
    load = experiment.spec.load
    written = listener.model_dump(mode="json", by_alias=True, exclude_unset=True)
    found: dict[str, Any] = {}
    if load.tenants and listener.tenants is not None:
        # Callers of the lab are its own; identity providers are on other machines.
        named = _named(listener.tenants, experiment, asking)
        kept = written["tenants"].get("named", [])[len(named) :]
        found["tenants"] = {**written["tenants"], "trustHeader": True, "named": [*named, *kept]}
    if listener.deadline is not None and any(one.times_service is not None for one in load.callers):
        longest_s = listener.deadline.max / time_scale
        found["deadline"] = {**written["deadline"], "max": format_duration(round(longest_s, 4))}
        if listener.deadline.form_in_force is DeadlineForm.SECONDS:
            found["deadline"]["form"] = DeadlineForm.MILLISECONDS.value
    return found


def tokens_between(load: LoadSpec, listener: Listener, asking: RequestTemplate) -> int | None:
    """Tokens that large requests of this load exceed and others do not: the geometric mean of the largest usual
    request and the smallest large one. None if none are large.
    """
    times = [one.times_tokens for one in load.callers if one.times_tokens is not None]
    if not times:
        return None
    per_token = BYTES_PER_TOKEN if listener.tenants is None else listener.tenants.bytes_per_token
    least = min(times)
    usual = _tokens(load, asking, load.prompt_tokens.longest, load.output_tokens.longest, per_token)
    prompt, answer = round(least * load.prompt_tokens.shortest), round(least * load.output_tokens.shortest)
    large = _tokens(load, asking, prompt, answer, per_token)
    return round(math.sqrt(usual * large))


def _deadline_header(listener: Listener | None, deadline_s: float) -> dict[str, str]:
    deadline = None if listener is None else listener.deadline
    text = str(max(1, round(1000 * deadline_s)))
    if deadline is None:
        return {DEADLINE_HEADER: text}
    # In the lab seconds are written as milliseconds: its answers take parts of a second.
    return {deadline.header: f"{text}m" if deadline.form_in_force is DeadlineForm.GRPC else text}


def _named(tenants: Tenants, experiment: Experiment, asking: RequestTemplate) -> list[dict[str, Any]]:
    """Tenants that the load has, with their quotas in the lab."""
    load = experiment.spec.load
    tokens = _request_tokens(load, asking, tenants.bytes_per_token)
    return [
        {"name": named.name, **_quota(named, one, one.times_quota, experiment, tokens)}
        if one.times_quota is not None
        else named.model_dump(
            mode="json", by_alias=True, exclude_unset=True, include={"name", "weight", "min_percent"}
        )
        for named, one in zip(tenants.named, load.tenants, strict=False)
    ]


def _quota(
    quota: Quota, group: CallerGroup, times_quota: float, experiment: Experiment, tokens: float
) -> dict[str, Any]:
    """The quota in the lab, per hour because it must be a whole number; ``tokens`` are those of a request."""
    rate_per_s = experiment.spec.load.rate_of(group, experiment.rate_per_s)
    tested_per_s, ample_per_s = rate_per_s / times_quota, rate_per_s * _AMPLE
    by_tokens, least = group.unit == "tokens", _LEAST_BURST * len(experiment.proxies)
    per_s = ample_per_s if by_tokens else tested_per_s
    burst_s = LONGEST_BURST_S if quota.per_s is None else min(LONGEST_BURST_S, quota.burst_requests / quota.per_s)
    found = {
        "requests": max(1, round(3600 * per_s)),
        "per": QuotaUnit.HOUR.value,
        "burst": round(max(least, per_s * burst_s)),
    }
    if quota.tokens is None:
        return found
    tokens_per_s = tokens * (tested_per_s if by_tokens else ample_per_s)
    tokens_burst_s = min(LONGEST_BURST_S, quota.burst_tokens / (quota.tokens / quota.per.seconds))
    return {
        **found,
        "tokens": max(1, round(3600 * tokens_per_s)),
        "tokensBurst": round(max(least * tokens, tokens_per_s * tokens_burst_s)),
    }


def _request_tokens(load: LoadSpec, asking: RequestTemplate, bytes_per_token: int) -> float:
    """Tokens that the mean request counts as."""
    prompt = (load.prompt_tokens.shortest + load.prompt_tokens.longest) // 2
    answer = (load.output_tokens.shortest + load.output_tokens.longest) // 2
    return _tokens(load, asking, prompt, answer, bytes_per_token)


def _tokens(load: LoadSpec, asking: RequestTemplate, prompt: int, answer: int, bytes_per_token: int) -> float:
    """Tokens that a request with a prompt and an answer of this many counts as."""
    arrival = Arrival(
        at_s=0.0,
        request_id="",
        target=LoadTarget(url=""),
        streaming=load.streaming_percent > 0,
        max_tokens=answer,
        prompt_tokens=prompt,
    )
    return len(asking.body(arrival)) / bytes_per_token + answer
