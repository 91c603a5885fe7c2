"""Lint: regions that nobody is in, and engines that cannot stand in for each other."""

from collections.abc import Iterator
from typing import Final

from policies.findings import Finding, did_you_mean
from policies.lints.lint_context import LintContext, PoolRule, SetRule
from policies.model import PolicySet
from policies.resilience import AcrossRevisions
from policies.route import ModelRoute


def _engines_of(policies: PolicySet, route: ModelRoute) -> tuple[set[str], bool]:
    """The regions of the engines that a route can reach, and whether policies name all of these engines."""
    names = {share.pool for share in route.spec.pools} | ({route.spec.fallback} - {None})
    pools = [policies.pools[name].spec for name in sorted(one for one in names if one is not None)]
    return {one.region for pool in pools for one in pool.endpoints}, all(pool.endpoints for pool in pools)


def _allowed(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        wanted = dict.fromkeys(route.spec.allowed_regions)
        if not wanted:
            continue
        known, complete = _engines_of(policies, route)
        if not complete:
            continue  # engines that a cluster finds are not known here
        origin = policies.origin("ModelRoute", name, "spec.allowedRegions")
        path = "spec.allowedRegions"
        if known.isdisjoint(wanted):
            yield Finding(
                code="SG160",
                origin=origin,
                path=path,
                message=f"route {name}: no engine of its pools is in {' or '.join(wanted)}: all of it is refused",
                fix="say the region of the engines that are there, or send the route to other pools",
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
                    fix=hint or "correct the name, or leave it out",
                )
        if "" in known:
            yield Finding(
                code="SG162",
                origin=origin,
                path=path,
                message=f"route {name}: some engines of its pools say no region, and get none of its requests",
                fix="say the region of every endpoint",
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
                did_you_mean(region, known - {""}) or "correct the name, or leave it out",
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
            f"nobody may stand in for {' and '.join(region or 'engines without a region' for region in alone)}: "
            "no other region serves that revision",
            "say the same revision of all regions, or regions.acrossRevisions: any",
        )


REGION_RULES: Final[tuple[PoolRule, ...]] = (_order, _revisions)
REGION_SET_RULES: Final[tuple[SetRule, ...]] = (_allowed,)
