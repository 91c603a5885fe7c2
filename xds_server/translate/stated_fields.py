"""Fields of a request that a trusted caller states in headers, so that Envoy reads no body to choose a route.

Routes match only well-formed values: a stream that is ``true``, ``false`` or absent, and a token limit that is a
number or absent. All other requests pass every route, down to the refusals here, which name the header. The
listener leaves the first of repeated headers only.

Measurements and alternatives: docs/adr/0024-reading-request-fields.md.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
)
from envoy_data_plane.envoy.config.route.v3 import DirectResponseAction, HeaderMatcher, Route, RouteMatch
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher
from envoy_data_plane.envoy.type.v3 import Int64Range

from policies.route import MAX_TOKENS_HEADER, MODEL_HEADER, STREAM_HEADER, Match, ModelRoute

MISSING_HEADER_REASON: Final = "missing-header"
INVALID_HEADER_REASON: Final = "invalid-header"

TOKEN_DIGITS: Final = 9
"""Most digits of a token limit; a longer number is not one."""

_NUMBER: Final = f"[0-9]{{0,{TOKEN_DIGITS}}}"


def stated_matchers(match: Match, *, streaming: bool) -> tuple[HeaderMatcher, ...]:
    """Conditions of ``match`` on model and stream for one kind of request."""
    found = []
    if match.model is not None:
        found.append(HeaderMatcher(name=MODEL_HEADER, string_match=StringMatcher(exact=match.model)))
    if streaming:
        found.append(HeaderMatcher(name=STREAM_HEADER, string_match=StringMatcher(exact="true", ignore_case=True)))
    elif match.stream is False:
        found.append(not_streaming())
    return tuple(found)


def well_formed(match: Match, *, streaming: bool) -> tuple[HeaderMatcher, ...]:
    """Further conditions of a route that serves requests, so that it takes none with a malformed header."""
    number = _optional(MAX_TOKENS_HEADER, _NUMBER)
    return (number,) if streaming or match.stream is False else (not_streaming(), number)


def tokens_above(limit: int) -> HeaderMatcher:
    """The stated token limit is above this one."""
    return HeaderMatcher(name=MAX_TOKENS_HEADER, range_match=Int64Range(start=limit + 1, end=10**TOKEN_DIGITS))


def stated_field_refusals(routes: Sequence[ModelRoute]) -> tuple[Route, ...]:
    """Replies for the end of a port's routes to requests with a malformed header, or without the model; none if
    the port reads bodies.
    """
    if not routes[0].spec.listener.reads_headers:
        return ()
    return (
        _refusal(
            "invalid-max-tokens",
            "/",
            _invalid(MAX_TOKENS_HEADER, f"a whole number of at most {TOKEN_DIGITS} digits"),
            HeaderMatcher(
                name=MAX_TOKENS_HEADER,
                string_match=StringMatcher(safe_regex=RegexMatcher(regex=_NUMBER)),
                invert_match=True,
            ),
        ),
        _refusal(
            "invalid-stream",
            "/",
            _invalid(STREAM_HEADER, "true or false"),
            *(
                HeaderMatcher(
                    name=STREAM_HEADER,
                    string_match=StringMatcher(exact=value, ignore_case=True),
                    invert_match=True,
                )
                for value in ("true", "false")
            ),
        ),
        *(
            _refusal(
                f"missing-model{path}",
                path,
                (
                    MISSING_HEADER_REASON,
                    f"the header {MODEL_HEADER} is missing: routes of this port match the model",
                ),
                HeaderMatcher(
                    name=MODEL_HEADER, string_match=StringMatcher(exact=""), treat_missing_header_as_empty=True
                ),
            )
            for path in _shortest(
                route.spec.match.path_prefix for route in routes if route.spec.match.model is not None
            )
        ),
    )


def not_streaming() -> HeaderMatcher:
    """The header asks for a whole answer, or is absent."""
    return _optional(STREAM_HEADER, "(?i:false)?")


def _optional(name: str, regex: str) -> HeaderMatcher:
    """The header has such a value, or is absent and the expression matches an empty one."""
    return HeaderMatcher(
        name=name,
        string_match=StringMatcher(safe_regex=RegexMatcher(regex=regex)),
        treat_missing_header_as_empty=True,
    )


def _invalid(header: str, allowed: str) -> tuple[str, str]:
    return INVALID_HEADER_REASON, f"the header {header} must be {allowed}"


def _shortest(paths: Iterable[str]) -> list[str]:
    """These paths without those that begin with another one."""
    found: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(one) for one in found):
            found.append(path)
    return found


def _refusal(name: str, path: str, why: tuple[str, str], *headers: HeaderMatcher) -> Route:
    reason, message = why
    return Route(
        name=name,
        match=RouteMatch(prefix=path, headers=list(headers)),
        # No body is read before the route is chosen, so there is no limit of 1 MiB on the requests it may answer.
        direct_response=DirectResponseAction(status=400, body=DataSource(inline_string=message)),
        response_headers_to_add=[
            HeaderValueOption(
                header=HeaderValue(key="x-switchgear-reason", value=reason),
                append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
            )
        ],
    )
