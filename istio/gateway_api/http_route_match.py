"""Conditions of a ModelRoute as an HTTPRoute's match.

The Gateway API knows exact and regular headers, each name once, nothing about their absence, and no bodies. An
unsupported condition is never dropped, or the route would match more requests: the route is left out, and
``UnsupportedMatchError`` says why. Conditions on the body become a header that a component before the gateway
must set.
"""

import re
from dataclasses import dataclass
from typing import Final

from istio.export.istio_objects import Object
from policies.route import MODEL_HEADER, STREAM_HEADER, HeaderMatch, Match

GATEWAY_MODEL_HEADER: Final = "x-gateway-model-name"
"""Set by the body-based router of the Gateway API's inference extension."""

_PATH: Final = re.compile(r"(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})+")
_NOT_IN_PATHS: Final = ("//", "/./", "/../", "%2f", "%2F", "#")
_VALUE: Final = re.compile(r"[!-~]+([\t ]?[!-~]+)*")
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_|~`-]{1,256}")
_METHODS: Final = frozenset("GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH".split())  # noqa: SIM905 - a list
_LONGEST_PATH: Final = 1024
_LONGEST_VALUE: Final = 4096
_MOST_HEADERS: Final = 16


class UnsupportedMatchError(Exception):
    """A condition that the Gateway API has no words for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRouteMatch:
    """A match, and the host that it is only for; empty for any."""

    match: Object
    host: str = ""


def http_route_match(match: Match, *, stated: bool = False) -> HttpRouteMatch:
    """The match; raises ``UnsupportedMatchError`` for an unsupported condition.

    ``stated``: callers state model and stream in Switchgear's headers.
    """
    if match.tokens_above is not None:
        raise UnsupportedMatchError("HTTPRoute does not support tokensAbove: nothing there estimates tokens")
    headers: dict[str, Object] = {}
    found: Object = {"path": path_match(match.path_prefix)}
    host = ""
    for one in match.headers:
        name = one.name.lower()
        if name == ":method":
            found["method"] = _method(one)
        elif name == ":authority":
            host = _authority(one)
        elif name.startswith(":") or not _NAME.fullmatch(name):
            raise UnsupportedMatchError(f"HTTPRoute does not support the header {one.name}")
        elif name in headers:
            raise UnsupportedMatchError(f"HTTPRoute accepts one condition per header; {one.name} has two")
        else:
            headers[name] = {"name": one.name, **_condition(one)}
    for name, value in _of_the_body(match, MODEL_HEADER if stated else GATEWAY_MODEL_HEADER):
        if name in headers:
            raise UnsupportedMatchError(f"HTTPRoute accepts one condition per header; {name} has two")
        headers[name] = {"name": name, "type": "Exact", "value": _value(value)}
    if len(headers) > _MOST_HEADERS:
        raise UnsupportedMatchError(f"HTTPRoute accepts at most {_MOST_HEADERS} header conditions")
    if headers:
        found["headers"] = list(headers.values())
    return HttpRouteMatch(match=found, host=host)


def _of_the_body(match: Match, model_header: str) -> list[tuple[str, str]]:
    said_of = [] if match.model is None else [(model_header, match.model)]
    return said_of if match.stream is None else [*said_of, (STREAM_HEADER, "true" if match.stream else "false")]


def path_match(prefix: str) -> Object:
    """A prefix, element by element where that says the same or the API takes no other."""
    fits = _PATH.fullmatch(prefix) and not any(part in prefix for part in _NOT_IN_PATHS)
    if fits and not prefix.endswith(("/..", "/.")) and len(prefix) <= _LONGEST_PATH:
        return {"type": "PathPrefix", "value": prefix}
    expression = f"{re.escape(prefix)}.*"
    if len(expression) > _LONGEST_PATH:
        raise UnsupportedMatchError(f"HTTPRoute paths have at most {_LONGEST_PATH} characters")
    return {"type": "RegularExpression", "value": expression}


def _condition(one: HeaderMatch) -> Object:
    if one.invert or one.present is False:
        raise UnsupportedMatchError(f"HTTPRoute cannot match the absence of {one.name}")
    if one.exact is not None and one.exact:
        return {"type": "Exact", "value": _value(one.exact)}
    if one.exact is not None:
        raise UnsupportedMatchError(f"HTTPRoute cannot match an empty {one.name}")
    if one.prefix is not None:
        return {"type": "RegularExpression", "value": _value(f"{re.escape(one.prefix)}.*")}
    return {"type": "RegularExpression", "value": _value(one.regex if one.regex is not None else ".*")}


def _value(text: str) -> str:
    if len(text) > _LONGEST_VALUE or not _VALUE.fullmatch(text):
        raise UnsupportedMatchError(
            "HTTPRoute header values are printable ASCII with single spaces, at most 4096 characters"
        )
    return text


def _method(one: HeaderMatch) -> str:
    if one.exact not in _METHODS or one.invert:
        raise UnsupportedMatchError("HTTPRoute matches one method by name")
    return str(one.exact)


_HOST: Final = re.compile(r"(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def _authority(one: HeaderMatch) -> str:
    host = one.exact or ""
    if one.invert or len(host) > 253 or not _HOST.fullmatch(host) or re.fullmatch(r"[0-9.]+", host):
        raise UnsupportedMatchError("HTTPRoute matches host names without a port")
    return host
