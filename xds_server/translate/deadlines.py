"""Deadlines of callers as Envoy's time limit of a request, and the conditions of routes on them.

Envoy ends any request after its ``grpc-timeout``, counted from its arrival, on a route whose
``max_stream_duration`` allows it. So the listener writes each deadline into that header, before a route is chosen.
Nothing counts against an engine then, unlike with ``x-envoy-upstream-rq-timeout-ms``: a caller in a hurry must not
eject engines.

Invalid values match no condition here, and Envoy ignores them: such a request has the limits of its
route.

Source: envoy/config/route/v3/route_components.proto, RouteAction.MaxStreamDuration; gRPC over HTTP2, "Timeout".
Measurements and alternatives: docs/adr/0043-deadlines.md.
"""

import math
from collections.abc import Iterator
from typing import Final

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation
from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
)
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher
from envoy_data_plane.envoy.type.v3 import Int64Range

from policies.deadline import GRPC_TIMEOUT_HEADER, Deadline, DeadlineForm

DEADLINE_REASON: Final = "deadline-too-short"

DEADLINE_KIND: Final = "deadline-too-short"
"""Part of the names of routes that refuse by deadline."""

TRIAL_PERCENT: Final = 5
"""Of requests that seem hopeless, which are served: they show whether answers became faster, or differ."""

REFUSED_PERCENT: Final = 100 - TRIAL_PERCENT

_DIGITS: Final = 8
"""Most digits of a deadline: Envoy ignores longer ones. Source: gRPC over HTTP2, "TimeoutValue"."""

_PER_MS: Final = {"n": 1e6, "u": 1e3, "m": 1.0, "S": 1e-3, "M": 1 / 60e3, "H": 1 / 3.6e6}
"""Units of gRPC in a millisecond."""

_SUFFIX: Final = {DeadlineForm.MILLISECONDS: "m", DeadlineForm.SECONDS: "S"}


def deadline_mutations(deadline: Deadline | None) -> Iterator[HeaderMutation]:
    """Mutations of request headers, before a route is chosen, that make Envoy end requests at their deadline."""
    if deadline is None:
        return
    # Of a repeated header the first value counts, as in every condition.
    stated = f"%REQ({deadline.header})%"
    yield _written(deadline.header, stated, HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS)
    if deadline.header != GRPC_TIMEOUT_HEADER:
        yield HeaderMutation(remove=GRPC_TIMEOUT_HEADER)
        # Without a value Envoy adds no header.
        yield _written(GRPC_TIMEOUT_HEADER, stated, HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD)
    if deadline.form_in_force in _SUFFIX:
        value = f"{stated}{_SUFFIX[deadline.form_in_force]}"
        yield _written(GRPC_TIMEOUT_HEADER, value, HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS)


def states_deadline(deadline: Deadline) -> HeaderMatcher:
    """The request has a deadline."""
    if deadline.form_in_force is DeadlineForm.GRPC:
        return _matches(deadline, f"[0-9]{{1,{_DIGITS}}}[{''.join(_PER_MS)}]")
    return HeaderMatcher(name=deadline.header, range_match=Int64Range(start=0, end=10**_DIGITS))


def deadline_below(deadline: Deadline, limit_s: float) -> HeaderMatcher:
    """The request has a deadline below this time, to the millisecond."""
    limit_ms = max(1, round(limit_s * 1000))
    form = deadline.form_in_force
    if form is DeadlineForm.GRPC:
        units = (f"{_below(math.ceil(limit_ms * per_ms))}{unit}" for unit, per_ms in _PER_MS.items())
        return _matches(deadline, "|".join(units))
    end = limit_ms if form is DeadlineForm.MILLISECONDS else math.ceil(limit_ms / 1000)
    return HeaderMatcher(name=deadline.header, range_match=Int64Range(start=0, end=min(end, 10**_DIGITS)))


def deadline_key(route: str, kind: str, step: int) -> str:
    """Runtime key of the percentage of requests below this step that the route refuses."""
    return f"switchgear.deadline.{route}.{kind}.{step}"


def _below(bound: int) -> str:
    """A regular expression of whole numbers, of at most eight digits, below this one; at least 1."""
    text = str(bound)
    if len(text) > _DIGITS:
        return f"[0-9]{{1,{_DIGITS}}}"
    shorter = [f"[0-9]{{1,{len(text) - 1}}}"] if len(text) > 1 else []
    equal_up_to = [
        f"{text[:place]}[0-{int(digit) - 1}]"
        + (f"[0-9]{{{len(text) - place - 1}}}" if place < len(text) - 1 else "")
        for place, digit in enumerate(text)
        if digit != "0"
    ]
    return f"(?:{'|'.join((*shorter, *equal_up_to))})"


def _matches(deadline: Deadline, regex: str) -> HeaderMatcher:
    return HeaderMatcher(name=deadline.header, string_match=StringMatcher(safe_regex=RegexMatcher(regex=regex)))


def _written(name: str, value: str, action: HeaderValueOptionHeaderAppendAction) -> HeaderMutation:
    return HeaderMutation(
        append=HeaderValueOption(header=HeaderValue(key=name, value=value), append_action=action)
    )
