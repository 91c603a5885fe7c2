"""Warnings about valid policies.

Every rule is a pure function from a pool, or from the whole set, to findings. Codes: ``docs/codes.md``.
"""

from dataclasses import replace
from typing import Final

from policies.findings import Finding
from policies.lints.adapter_lints import ADAPTER_RULES
from policies.lints.affinity_lints import AFFINITY_RULES
from policies.lints.auth_lints import AUTH_RULES
from policies.lints.capacity_lints import CAPACITY_RULES, SHARED_RULES
from policies.lints.degradation_lints import DEGRADATION_RULES
from policies.lints.hedging_lints import HEDGING_RULES
from policies.lints.limit_lints import LIMIT_RULES, PORT_RULES
from policies.lints.lint_context import LintContext, PoolRule, SetRule
from policies.lints.region_lints import REGION_RULES, REGION_SET_RULES
from policies.lints.retry_lints import RETRY_RULES
from policies.lints.route_lints import ROUTE_RULES
from policies.lints.stage_lints import STAGE_RULES
from policies.lints.timeout_lints import TIMING_RULES
from policies.lints.value_lints import VALUE_RULES
from policies.model import PolicySet
from policies.origin import Origin

_POOL_RULES: Final[tuple[PoolRule, ...]] = (
    *TIMING_RULES,
    *RETRY_RULES,
    *HEDGING_RULES,
    *CAPACITY_RULES,
    *DEGRADATION_RULES,
    *REGION_RULES,
    *VALUE_RULES,
    *LIMIT_RULES,
)
_SET_RULES: Final[tuple[SetRule, ...]] = (
    *SHARED_RULES,
    *ROUTE_RULES,
    *PORT_RULES,
    *REGION_SET_RULES,
    *AUTH_RULES,
    *AFFINITY_RULES,
    *ADAPTER_RULES,
    *STAGE_RULES,
)
_NOWHERE: Final = Origin(file="", line=0, column=0)


def lint(policies: PolicySet) -> tuple[Finding, ...]:
    """All findings, in the order of files and lines."""
    found = list(policies.remarks)
    for name, pool in policies.pools.items():
        advised = LintContext(policies=policies, name=name, pool=pool.spec, spec=policies.effective[name])
        found += [finding for rule in _POOL_RULES for finding in rule(advised)]
    found += [finding for rule in _SET_RULES for finding in rule(policies)]
    return tuple(
        sorted(_together(found), key=lambda one: (one.origin or _NOWHERE, one.code, one.path, one.message))
    )


def _together(findings: list[Finding]) -> list[Finding]:
    """One finding for all pools that share the line that causes it."""
    first: dict[tuple[str, Origin | None, str], Finding] = {}
    more: dict[tuple[str, Origin | None, str], int] = {}
    for one in findings:
        key = (one.code, one.origin, one.path)
        if key in first:
            more[key] = more.get(key, 0) + 1
        else:
            first[key] = one
    return [
        replace(one, message=f"{one.message} (and {more[key]} more like this)") if key in more else one
        for key, one in first.items()
    ]
