"""Conditions of Switchgear's own Envoy routes as a VirtualService has them.

Istio reads no bodies. What routes ask of the body (``model``, ``stream``) becomes a condition on a header that the
caller, or an ext_proc filter before it, has to set. Istio also takes one condition for each header, and few
pseudo-headers; what does not fit goes into the patch of the route, which adds it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher, RouteMatch
from envoy_data_plane.envoy.type.matcher.v3 import MetadataMatcher, StringMatcher

from istio.export.istio_objects import Object
from policies.route import MODEL_HEADER, STREAM_HEADER

BODY_HEADERS: Final = {"model": MODEL_HEADER, "stream": STREAM_HEADER}
"""Which header stands for a field of the body."""

_PSEUDO_HEADERS: Final = {":method": "method", ":authority": "authority", ":scheme": "scheme"}
"""Those that a VirtualService has words of its own for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualServiceMatch:
    """A match of a VirtualService, and conditions on headers that only Envoy knows."""

    match: Object
    patched: tuple[Object, ...]


def match_conditions(match: RouteMatch, port: int) -> VirtualServiceMatch:
    """What a request has to be like, at this port."""
    wanted: Object = {}
    unwanted: Object = {}
    pseudo: Object = {}
    patched: list[Object] = []
    for field in match.dynamic_metadata:
        (unwanted if field.invert else wanted)[BODY_HEADERS[_key(field)]] = _body_value(field)
    for header in match.headers:
        name, present = header.name.lower(), header.present_match
        absent = header.invert_match if present is None else header.invert_match == present
        said = {} if present is not None else _text(header.string_match)
        into = unwanted if absent else wanted
        if name in _PSEUDO_HEADERS and into is wanted and said and _PSEUDO_HEADERS[name] not in pseudo:
            pseudo[_PSEUDO_HEADERS[name]] = said
        elif name in into or name.startswith(":") or said is None:
            patched.append(_in_envoy(header))
        else:
            into[name] = said
    if patched and not (wanted or unwanted or pseudo):
        # To istiod a route without conditions ends the list: it leaves out all that follow.
        pseudo["method"] = {"regex": ".+"}
    result: Object = {"port": port, "uri": {"prefix": match.prefix}, **pseudo}
    if wanted:
        result["headers"] = wanted
    if unwanted:
        result["withoutHeaders"] = unwanted
    return VirtualServiceMatch(match=result, patched=tuple(patched))


def _key(field: MetadataMatcher) -> str:
    return field.path[0].key or ""


def _body_value(field: MetadataMatcher) -> Object:
    text = field.value.string_match if field.value is not None else None
    return {"exact": text.exact} if text is not None and text.exact else {"regex": "(?i)true"}


def _text(matcher: StringMatcher | None) -> Object | None:
    """As Istio compares text; None where it cannot."""
    if matcher is None:
        return None
    if matcher.safe_regex is not None:
        return {"regex": matcher.safe_regex.regex}
    if matcher.prefix:
        return {"prefix": matcher.prefix}
    if not matcher.exact:
        return None  # Istio reads an empty text as no condition
    return {"regex": f"(?i){re.escape(matcher.exact)}"} if matcher.ignore_case else {"exact": matcher.exact}


def _in_envoy(header: HeaderMatcher) -> Object:
    said: Object = {"name": header.name}
    if header.string_match is None:
        said["present_match"] = header.present_match is not False
    else:
        said["string_match"] = _envoy_text(header.string_match)
    if header.invert_match:
        said["invert_match"] = True
    return said


def _envoy_text(matcher: StringMatcher) -> Object:
    if matcher.safe_regex is not None:
        return {"safe_regex": {"regex": matcher.safe_regex.regex}}
    if matcher.prefix:
        return {"prefix": matcher.prefix}
    return {"exact": matcher.exact or "", **({"ignore_case": True} if matcher.ignore_case else {})}


def patched_headers(found: Sequence[Object]) -> Object:
    """The part of a route's patch that adds these conditions."""
    return {"match": {"headers": list(found)}} if found else {}
