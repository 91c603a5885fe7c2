"""What the generated routes say of deadlines and fair shares, as values for a simulated proxy. Pure.

Percentages are in the runtime layer, by key, as in Envoy: of requests below a step of deadlines, and of those of a
tenant above its share.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher, Route
from envoy_data_plane.envoy.extensions.filters.http.fault.v3 import HttpFault
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import HeaderMutationPerRoute
from envoy_data_plane.envoy.service.runtime.v3 import Runtime
from envoy_data_plane.google.protobuf import Any

from chaos.simulator.header_rules import Headers, header_matches, with_mutations
from xds_server.translate.deadlines import DEADLINE_KIND
from xds_server.translate.runtime import weights_prefix

NO_PERCENTAGES: Final[Mapping[str, float]] = MappingProxyType({})

_CALLER_KEY: Final = "fault.http.{}.abort.abort_percent"
"""Envoy's runtime key of a fault filter for the caller that a header names. Source: "Fault Injection", runtime."""

_CALLER_HEADER: Final = "x-envoy-downstream-service-cluster"
_COUNTS: Final = ("circuit_breakers.", weights_prefix(""))
_PARTS: Final = {"HUNDRED": 100.0, "TEN_THOUSAND": 10_000.0, "MILLION": 1_000_000.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineRoute:
    """An Envoy route for some requests of one kind, by their headers; the first that matches serves them.

    ``refuses``: without asking an engine, those in ``runtime_key`` percent. ``longest_s``: the longest deadline,
    0 without a limit; None: the route reads no deadline. The rest are the limits of its attempts.
    """

    conditions: tuple[HeaderMatcher, ...]
    refuses: bool = False
    runtime_key: str = ""
    longest_s: float | None = None
    attempts: int = 0
    per_try_s: float | None = None
    hedges: bool = False

    def takes(self, headers: Headers) -> bool:
        """Whether the request meets its conditions."""
        return all(header_matches(one, headers) for one in self.conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFilters:
    """The filters that refuse tenants above their share: ``naming`` writes the header that a key is named after.

    ``others`` are the conditions of callers without a known name, who have ``others_key``.
    """

    naming: tuple[HeaderMutation, ...]
    others: tuple[HeaderMatcher, ...]
    others_key: str

    def refused_percent(self, headers: Headers, percentages: Mapping[str, float]) -> float:
        """Part of the requests with these headers that is refused."""
        if all(header_matches(one, headers) for one in self.others):
            return percentages.get(self.others_key, 0.0)
        named = with_mutations(self.naming, headers).get(_CALLER_HEADER, "")
        return percentages.get(_CALLER_KEY.format(named), 0.0)


def deadline_routes(
    routes: Iterable[Route], *, streaming: bool, headers: Collection[str]
) -> tuple[DeadlineRoute, ...]:
    """Those of a ModelRoute's Envoy routes for this kind of request that refuse by deadline or reach engines.

    ``headers`` are those by which they differ; conditions on others are those of the ModelRoute.
    """
    kind = "streaming" if streaming else "non-streaming"
    found = []
    for one in routes:
        _, *parts = one.name.split("/")
        refuses = parts[:2] == [DEADLINE_KIND, kind]
        if (not refuses and parts[:1] != [kind]) or one.match is None:
            continue
        conditions = tuple(matcher for matcher in one.match.headers if matcher.name in headers)
        if refuses:
            fraction = one.match.runtime_fraction
            key = "" if fraction is None else fraction.runtime_key
            found.append(DeadlineRoute(conditions=conditions, refuses=True, runtime_key=key))
        elif one.route is not None:
            limit, retries, hedge = one.route.max_stream_duration, one.route.retry_policy, one.route.hedge_policy
            longest = None if limit is None else limit.grpc_timeout_header_max
            per_try = None if retries is None else retries.per_try_timeout
            found.append(
                DeadlineRoute(
                    conditions=conditions,
                    longest_s=None if longest is None else longest.total_seconds(),
                    attempts=0 if retries is None else retries.num_retries or 0,
                    per_try_s=None if per_try is None else per_try.total_seconds(),
                    hedges=hedge is not None and hedge.hedge_on_per_try_timeout,
                )
            )
    return tuple(found)


def share_filters(packed: Mapping[str, Any]) -> ShareFilters | None:
    """The filters of a route's tenants; None without fair shares."""
    naming: tuple[HeaderMutation, ...] = ()
    others: HttpFault | None = None
    for one in packed.values():
        message = one.unpack()
        if isinstance(message, HttpFault):
            others = message
        elif isinstance(message, HeaderMutationPerRoute) and message.mutations is not None:
            naming = tuple(message.mutations.request_mutations)
    if others is None:
        return None
    return ShareFilters(naming=naming, others=tuple(others.headers), others_key=others.abort_percent_runtime)


def percentages(layer: Runtime) -> Mapping[str, float]:
    """Keys of a runtime layer that are percentages of requests."""
    found = {}
    for key, value in ({} if layer.layer is None else layer.layer.fields).items():
        if key.startswith(_COUNTS):
            continue
        if value.struct_value is not None:
            parts = value.struct_value.fields
            whole = _PARTS[parts["denominator"].string_value or "HUNDRED"]
            found[key] = 100.0 * (parts["numerator"].number_value or 0.0) / whole
        elif value.number_value is not None:
            found[key] = value.number_value
    return MappingProxyType(found)
