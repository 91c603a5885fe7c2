"""A share of an adapter's requests for another one: a copy of each Envoy route, in front of it.

The copy matches a random part of the requests, selects engines that list the canary, and has the script that
renames the model for fallbacks write the canary's name. Answers state it.
"""

import copy
from collections.abc import Iterator
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    RuntimeFractionalPercent,
)
from envoy_data_plane.envoy.config.route.v3 import Route
from envoy_data_plane.envoy.type.v3 import FractionalPercent, FractionalPercentDenominatorType

from policies.route import ModelRoute
from xds_server.translate.lua_scripts import AnswerLimit, rewrite_model
from xds_server.translate.residency import metadata_match
from xds_server.translate.served_model import SERVED_MODEL_HEADER, of_an_engine

_MILLION: Final = 1_000_000
"""Envoy draws the route and the pool by one random number, modulo this and modulo the sum of weights. With a
hundred all requests of a small canary would go to the first of several pools."""


def canary_routes(route: ModelRoute, made: Route, limit: AnswerLimit | None) -> Iterator[Route]:
    """The copy of an Envoy route for its canary; none of a route that holds for a part of the requests already."""
    canary = route.spec.adapter_canary
    if canary is None or made.route is None or made.match is None or made.match.runtime_fraction is not None:
        return
    found = copy.deepcopy(made)
    assert found.route is not None  # noqa: S101 -- as in ``made``
    assert found.match is not None  # noqa: S101 -- as in ``made``
    wanted, usual = metadata_match(route, canary.name), metadata_match(route, route.spec.adapter_name)
    found.name, found.stat_prefix = f"{made.name}/canary", f"{made.stat_prefix}.canary"
    found.match.runtime_fraction = RuntimeFractionalPercent(
        default_value=FractionalPercent(
            numerator=round(canary.percent / 100 * _MILLION), denominator=FractionalPercentDenominatorType.MILLION
        )
    )
    if found.route.metadata_match == usual:
        found.route.metadata_match = wanted
    for pool in [] if found.route.weighted_clusters is None else found.route.weighted_clusters.clusters:
        if pool.metadata_match == usual:
            pool.metadata_match = wanted
    # That of a pool with another model replaces it.
    found.typed_per_filter_config |= rewrite_model(canary.name, limit)
    found.response_headers_to_add.append(
        HeaderValueOption(
            header=HeaderValue(key=SERVED_MODEL_HEADER, value=of_an_engine(canary.name)),
            append_action=HeaderValueOptionHeaderAppendAction.ADD_IF_ABSENT,
        )
    )
    yield found
