"""Match conditions of an Envoy route: path, headers, and fields of the body, read there or stated in headers."""

from collections.abc import Sequence
from typing import Final

from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher, RouteMatch
from envoy_data_plane.envoy.type.matcher.v3 import (
    DoubleMatcher,
    MetadataMatcher,
    MetadataMatcherPathSegment,
    RegexMatcher,
    StringMatcher,
    ValueMatcher,
)
from envoy_data_plane.envoy.type.v3 import DoubleRange

from policies.route import HeaderMatch, Match
from xds_server.translate.request_fields import ESTIMATED_TOKENS_KEY, REQUEST_METADATA
from xds_server.translate.stated_fields import stated_matchers

_MORE_THAN_ANYONE_ASKS: Final = 1e18


def route_match(
    match: Match,
    *,
    streaming: bool,
    headers: Sequence[HeaderMatcher] = (),
    fields: Sequence[MetadataMatcher] = (),
    stated: bool = False,
) -> RouteMatch:
    """Conditions of ``match`` for one kind of request, plus these. ``stated``: in headers, not read in bodies."""
    written = [matcher for header in match.headers for matcher in _header(header)]
    if stated:
        # The model first: it excludes most routes of a port.
        return RouteMatch(
            prefix=match.path_prefix, headers=[*stated_matchers(match, streaming=streaming), *written, *headers]
        )
    metadata: list[MetadataMatcher] = []
    if match.model is not None:
        metadata.append(body_field_matcher("model", ValueMatcher(string_match=StringMatcher(exact=match.model))))
    if streaming:
        metadata.append(body_field_matcher("stream", ValueMatcher(bool_match=True)))
    elif match.stream is False:
        # Also if the field is missing, which means false.
        metadata.append(body_field_matcher("stream", ValueMatcher(bool_match=True), invert=True))
    if match.tokens_above is not None:
        metadata.append(tokens_field_above(ESTIMATED_TOKENS_KEY, match.tokens_above))
    return RouteMatch(
        prefix=match.path_prefix,
        headers=[*written, *headers],
        dynamic_metadata=[*metadata, *fields],
    )


def body_field_matcher(field: str, value: ValueMatcher, *, invert: bool = False) -> MetadataMatcher:
    """Condition on a top-level field of the JSON body read by the listener."""
    return MetadataMatcher(
        filter=REQUEST_METADATA, path=[MetadataMatcherPathSegment(key=field)], value=value, invert=invert
    )


def tokens_field_above(field: str, tokens: int) -> MetadataMatcher:
    """The field is a number of more tokens than this."""
    above = DoubleRange(start=float(tokens + 1), end=_MORE_THAN_ANYONE_ASKS)
    return body_field_matcher(field, ValueMatcher(double_match=DoubleMatcher(range=above)))


def header_is_true(name: str) -> HeaderMatcher:
    """The header exists and is ``true``, in any case."""
    return HeaderMatcher(name=name, string_match=StringMatcher(exact="true", ignore_case=True))


def header_present(name: str) -> HeaderMatcher:
    """The header exists."""
    return HeaderMatcher(name=name, present_match=True)


def header_absent(name: str) -> HeaderMatcher:
    """The header does not exist."""
    return HeaderMatcher(name=name, present_match=False)


def _header(match: HeaderMatch) -> list[HeaderMatcher]:
    texts = [
        StringMatcher(exact=match.exact) if match.exact is not None else None,
        StringMatcher(prefix=match.prefix) if match.prefix is not None else None,
        StringMatcher(safe_regex=RegexMatcher(regex=match.regex)) if match.regex is not None else None,
    ]
    matchers = [
        HeaderMatcher(name=match.name, string_match=text, invert_match=match.invert)
        for text in texts
        if text is not None
    ]
    if match.present is not None or not matchers:
        matchers.append(
            HeaderMatcher(name=match.name, present_match=match.present is not False, invert_match=match.invert)
        )
    return matchers
