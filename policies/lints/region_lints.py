"""Lint: regions without engines, and regions that no other region can replace."""

from collections.abc import Iterator
from typing import Final

from policies.findings import Finding, did_you_mean
from policies.lints.lint_context import LintContext, PoolRule, SetRule
from policies.model import PolicySet
from policies.quantity import format_duration as text
from policies.resilience import AcrossRevisions
from policies.route import ModelRoute

_LONGEST_ROUND_TRIP_S: Final = 0.4
"""Between regions at opposite ends of the earth, with some jitter."""


def _engines_of(policies: PolicySet, route: ModelRoute) -> tuple[set[str], bool]:
    """The regions of the engines that a route can reach, and whether policies list all these engines."""
    names = {share.pool for share in route.spec.pools} | set(route.spec.fallbacks)
    pools = [policies.pools[name].spec for name in sorted(one for one in names if one is not None)]
    return {one.region for pool in pools for one in pool.endpoints}, all(pool.endpoints for pool in pools)


def _allowed(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        wanted = dict.fromkeys(route.spec.allowed_regions)
        if not wanted:
            continue
        known, complete = _engines_of(policies, route)
        if not complete:
            continue  # engines discovered in a cluster are unknown here
        origin = policies.origin("ModelRoute", name, "spec.allowedRegions")
        path = "spec.allowedRegions"
        if known.isdisjoint(wanted):
            yield Finding(
                code="SG160",
                origin=origin,
                path=path,
                message=f"route {name}: no engine is in {' or '.join(wanted)}: every request gets 503",
                fix="set the region of the endpoints, or use other pools",
            )
            continue
        for region in wanted:
            if region not in known:
                hint = did_you_mean(region, known - {""})
                yield Finding(
                    code="SG161",
                    origin=origin,
                    path=path,
                    message=f"route {name}: no engine of its pools is in {region}",
                    fix=hint or "correct or remove the region",
                )
        if "" in known:
            yield Finding(
                code="SG162",
                origin=origin,
                path=path,
                message=f"route {name}: engines without a region get none of its requests",
                fix="set the region of every endpoint",
            )


def _connect_between_regions(one: LintContext) -> Iterator[Finding]:
    connect_s, regions = one.spec.timeouts.connect, {endpoint.region for endpoint in one.pool.endpoints}
    if len(regions) > 1 and connect_s < _LONGEST_ROUND_TRIP_S:
        yield one.policy(
            "SG164",
            "spec.timeouts.connect",
            f"engines are in {len(regions)} regions, and a connection may take {text(connect_s)} at most: a round "
            "trip to a distant region takes up to 300 ms, so none of its engines can take over",
            "set timeouts.connect: 1s for this pool",
            causes=("spec.endpoints",),
        )


def _order(one: LintContext) -> Iterator[Finding]:
    known = {endpoint.region for endpoint in one.pool.endpoints}
    if len(known) < 2:
        return
    for region in one.spec.regions.order:
        if region not in known:
            yield one.policy(
                "SG161",
                "spec.regions.order",
                f"no engine is in {region}",
                did_you_mean(region, known - {""}) or "correct or remove the region",
            )


def _revisions(one: LintContext) -> Iterator[Finding]:
    if one.spec.regions.across_revisions is AcrossRevisions.ANY:
        return
    by_region: dict[str, set[str]] = {}
    exact = one.spec.regions.across_revisions is AcrossRevisions.EXACT
    for endpoint in one.pool.endpoints:
        kept = endpoint.revision if exact else endpoint.revision.partition(".")[0].lower().removeprefix("v")
        by_region.setdefault(endpoint.region, set()).add(kept)
    alone = [
        region
        for region, own in sorted(by_region.items())
        if len(by_region) > 1 and all(own.isdisjoint(other) for at, other in by_region.items() if at != region)
    ]
    if alone:
        yield one.engines(
            "SG163",
            "spec.endpoints",
            f"no other region serves the revision of {' and '.join(one or 'no region' for one in alone)}: "
            "if it fails, its callers get 503",
            "serve the same revision in two regions, or set regions.acrossRevisions: any",
        )


REGION_RULES: Final[tuple[PoolRule, ...]] = (_order, _revisions, _connect_between_regions)
REGION_SET_RULES: Final[tuple[SetRule, ...]] = (_allowed,)
