"""Find a request shape that a route sends to the pool under test. Pure."""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from policies.route import HeaderMatch, ModelRoute, PriorityClass

PATHS: Final = ("/v1/completions", "/v1/chat/completions")
"""Paths that engines serve."""

_SOMETHING: Final = "switchgear-lab"
_TRIED: Final = ("1", "true", "batch", "a", "a1", "user-1", _SOMETHING)
"""Values to try against a regular expression, besides its literal parts."""


class RequestShapeError(Exception):
    """No request shape reaches the pool; the message has the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """``batch_headers`` are added to batch-class requests; empty if no route distinguishes them."""

    path: str
    model: str | None
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    batch_headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def request_shape(
    routes: Iterable[ModelRoute], pool: str, streaming: frozenset[bool]
) -> tuple[ModelRoute, RequestShape]:
    """The route to use and the request shape; ``streaming`` are the values of ``stream`` in the load.

    ``routes`` are those that send requests to the pool. Batch requests get the headers of a batch route on the
    same port, if it only adds headers.
    """
    ordered = sorted(
        routes,
        key=lambda one: (
            one.spec.match.tokens_above is not None,
            one.spec.priority is not PriorityClass.INTERACTIVE,
            one.spec.match.stream is not None,
            -_share(one, pool),
            one.metadata.name,
        ),
    )
    refusals: list[str] = []
    for route in ordered:
        try:
            found = _shape(route)
            _answers(route, ordered, streaming)
        except RequestShapeError as problem:
            refusals.append(f"route {route.metadata.name}: {problem}")
            continue
        batch = next((_more(found, one) for one in ordered if _is_batch_of(one, route)), None)
        return route, RequestShape(
            path=found.path, model=found.model, headers=found.headers, batch_headers=batch or MappingProxyType({})
        )
    raise RequestShapeError(f"no request matches a route of pool {pool}: {'; '.join(refusals)}")


class RequestKind(NamedTuple):
    """What tells the requests of a load apart: class, form of the answer, and size."""

    batch: bool
    streaming: bool
    large: bool


KINDS: Final = tuple(RequestKind(*kind) for kind in itertools.product((False, True), repeat=3))


def meets(route: ModelRoute, shape: RequestShape, kind: RequestKind) -> bool:
    """Whether the route matches requests of this shape and kind."""
    match = route.spec.match
    headers = {**shape.headers, **(shape.batch_headers if kind.batch else {})}
    return (
        shape.path.startswith(match.path_prefix)
        and match.model in {None, shape.model}
        and match.stream in {None, kind.streaming}
        and (match.tokens_above is None or kind.large)
        and all(_holds(one, headers) for one in match.headers)
    )


def _holds(match: HeaderMatch, headers: Mapping[str, str]) -> bool:
    name = match.name.lower()
    value = headers.get("host" if name == ":authority" else name)
    if match.exact is not None:
        met = value == match.exact
    elif match.prefix is not None:
        met = value is not None and value.startswith(match.prefix)
    elif match.regex is not None:
        met = value is not None and re.fullmatch(match.regex, value) is not None
    else:
        met = (value is not None) is (match.present is not False)
    return met is not match.invert


def _shape(route: ModelRoute) -> RequestShape:
    match = route.spec.match
    path = next((one for one in PATHS if one.startswith(match.path_prefix)), None)
    if path is None:
        raise RequestShapeError(
            f"path prefix {match.path_prefix} excludes the engines' paths {' and '.join(PATHS)}"
        )
    headers: dict[str, str] = {}
    for one in match.headers:
        value = _value(one)
        if value is not None:
            headers["host" if one.name.lower() == ":authority" else one.name.lower()] = value
    return RequestShape(path=path, model=match.model, headers=MappingProxyType(headers))


def _answers(route: ModelRoute, beside: Iterable[ModelRoute], streaming: frozenset[bool]) -> None:
    """Raise RequestShapeError if some requests match neither the route nor one that differs only in ``stream``."""
    alike = {
        one.spec.match.stream
        for one in beside
        if one.spec.listener.port == route.spec.listener.port
        and one.spec.match.model_copy(update={"stream": None})
        == route.spec.match.model_copy(update={"stream": None})
    }
    if None not in alike and not streaming <= alike:
        sort = "streaming requests" if alike == {True} else "non-streaming requests"
        raise RequestShapeError(f"it matches only {sort}, but the load has other requests too")


def _value(match: HeaderMatch) -> str | None:
    """Required value of the header; None if it must be absent."""
    name = match.name.lower()
    if name.startswith(":") and name != ":authority":
        raise RequestShapeError(f"a condition on {name} is not supported")
    wanted: str | None
    if match.exact is not None:
        wanted = _other(match.exact) if match.invert else match.exact
    elif match.prefix is not None:
        wanted = _other(match.prefix) if match.invert else match.prefix
    elif match.regex is not None:
        wanted = _matching(match.regex, wanted=not match.invert)
        if wanted is None:
            raise RequestShapeError(f"found no value of {match.name} that matches {match.regex!r}")
    else:
        wanted = _SOMETHING if (match.present is not False) is not match.invert else None
    return wanted


def _other(value: str) -> str:
    return _SOMETHING if not _SOMETHING.startswith(value) else "other"


def _matching(regex: str, *, wanted: bool) -> str | None:
    spelled = re.split(r"[|()]", regex.strip("^$"))
    try:
        return next((one for one in (*spelled, *_TRIED) if one and bool(re.fullmatch(regex, one)) is wanted), None)
    except re.error:
        return None  # RE2 syntax that Python does not support


def _is_batch_of(batch: ModelRoute, route: ModelRoute) -> bool:
    return (
        batch.spec.priority is PriorityClass.BATCH
        and batch.spec.match.tokens_above is None
        and batch is not route
        and batch.spec.listener.port == route.spec.listener.port
    )


def _more(found: RequestShape, batch: ModelRoute) -> Mapping[str, str] | None:
    """Headers that make a request match the batch route; None if headers alone cannot."""
    match = batch.spec.match
    if not found.path.startswith(match.path_prefix) or match.model not in {None, found.model}:
        return None
    try:
        headers = _shape(batch).headers
    except RequestShapeError:
        return None
    return headers or None


def _share(route: ModelRoute, pool: str) -> int:
    return sum(one.weight for one in route.spec.pools if one.pool == pool)
