"""Conditions on request headers and changes of them, as Envoy applies those of a generated configuration. Pure."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation
from envoy_data_plane.envoy.config.core.v3 import HeaderValueOptionHeaderAppendAction
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher

Headers = Mapping[str, str]

NO_HEADERS: Final[Headers] = MappingProxyType({})

_REQUEST_HEADER: Final = re.compile(r"%REQ\(([^)]*)\)%")
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNIT_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def header_matches(matcher: HeaderMatcher, headers: Headers) -> bool:
    """Whether the condition holds; without the header only conditions on its absence do."""
    value = headers.get(matcher.name)
    if matcher.present_match is not None:
        return ((value is not None) is matcher.present_match) is not matcher.invert_match
    if value is None:
        if not matcher.treat_missing_header_as_empty:
            return False
        value = ""
    return _value_matches(matcher, value) is not matcher.invert_match


def _value_matches(matcher: HeaderMatcher, value: str) -> bool:
    if matcher.range_match is not None:
        return bool(re.fullmatch(r"-?[0-9]+", value)) and (
            matcher.range_match.start <= int(value) < matcher.range_match.end
        )
    text = matcher.string_match
    if text is not None and text.exact is not None:
        return value == text.exact
    if text is not None and text.safe_regex is not None:
        return re.fullmatch(text.safe_regex.regex, value) is not None
    raise ValueError(f"a condition on {matcher.name} of this kind is not simulated")


def with_mutations(mutations: Iterable[HeaderMutation], headers: Headers) -> Headers:
    """The headers after these changes, in their order; without a value Envoy adds no header."""
    found: dict[str, str] | None = None
    for one in mutations:
        now = dict(headers) if found is None else found
        found = now
        if one.append is None or one.append.header is None:
            now.pop(one.remove or "", None)
            continue
        name = one.append.header.key
        only_existing = one.append.append_action is HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS
        value = formatted(one.append.header.value, now)
        if value and (not only_existing or name in now):
            now[name] = value
    return headers if found is None else found


def formatted(text: str, headers: Headers) -> str:
    """Envoy's format string with values of request headers, empty where one is absent."""
    rest = _REQUEST_HEADER.sub("", text)
    if "%" in rest:
        raise ValueError(f"the format {text!r} is not simulated")
    return _REQUEST_HEADER.sub(lambda found: headers.get(found[1], ""), text)


def grpc_timeout_s(value: str | None) -> float | None:
    """Time of a ``grpc-timeout`` header; None without a valid one."""
    found = None if value is None else _TIMEOUT.fullmatch(value)
    return None if found is None else int(found[1]) * _UNIT_S[found[2]]
