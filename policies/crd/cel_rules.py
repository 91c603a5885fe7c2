"""What a cluster can judge of a document by itself: rules in CEL, and lists whose items have keys.

Each rule refuses only what the loader refuses as well, whatever other documents say: a value that another layer
may still supply is not missed here. What needs other documents, an address, or a regular expression is judged by
Switchgear alone, and told in the object's status.

Source: ``policies.relations``; Kubernetes, "Validation rules", "Resource use by validation functions".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from policies.merge import DEFAULT
from policies.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class CelRule:
    """A rule of one block, which is ``self``; ``code`` is what the loader calls the same mistake."""

    rule: str
    message: str
    code: str
    field: str = ""

    def to_schema(self) -> Schema:
        """As ``x-kubernetes-validations`` has it."""
        about = {"rule": self.rule, "message": f"{self.message} ({self.code})"}
        return {**about, "fieldPath": self.field} if self.field else about


def _ordered(low: str, high: str, *, code: str, message: str) -> CelRule:
    """Of two durations that are both said, the first is not the longer."""
    return CelRule(
        rule=f"!has(self.{low}) || !has(self.{high}) || duration(self.{low}) <= duration(self.{high})",
        message=message,
        code=code,
        field=f".{high}",
    )


RULES: Final[Mapping[str, tuple[CelRule, ...]]] = MappingProxyType(
    {
        "EnginePoolSpec": (
            CelRule(
                rule="!has(self.longestServiceTime) || duration(self.longestServiceTime) >= "
                "duration(has(self.serviceTime) ? self.serviceTime : '2s')",
                message="the longest service time is at least serviceTime",
                code="SG040",
                field=".longestServiceTime",
            ),
        ),
        "Discovery": (
            CelRule(
                rule="has(self.service) != (has(self.selector) && size(self.selector) > 0)",
                message="exactly one of service and selector",
                code="SG040",
            ),
        ),
        "ModelRouteSpec": (
            CelRule(
                rule="self.pools.exists(one, !has(one.weight) || one.weight > 0)",
                message="at least one weight above 0, for otherwise no request could go anywhere",
                code="SG038",
                field=".pools",
            ),
        ),
        "HeaderMatch": (
            CelRule(
                rule="(has(self.exact) ? 1 : 0) + (has(self.prefix) ? 1 : 0) + (has(self.regex) ? 1 : 0) + "
                "(has(self.present) ? 1 : 0) <= 1",
                message="one condition on a header at a time; write a second entry with the same name",
                code="SG040",
            ),
        ),
        "ResiliencePolicy": (
            CelRule(
                rule=f"self.metadata.name != '{DEFAULT}' || !has(self.spec) || !has(self.spec.pools) || "
                "size(self.spec.pools) == 0",
                message="the policy named default is for every pool and lists none",
                code="SG034",
                field=".spec.pools",
            ),
            CelRule(
                rule=f"self.metadata.name == '{DEFAULT}' || "
                "(has(self.spec) && has(self.spec.pools) && size(self.spec.pools) > 0)",
                message="a policy lists at least one pool in spec.pools, or is named default and is for all",
                code="SG033",
                field=".spec",
            ),
        ),
        "Backoff": (
            _ordered("base", "max", code="SG041", message="the longest back-off is at least the first, base"),
        ),
        "Breaker": (
            _ordered("cooldown", "maxCooldown", code="SG041", message="maxCooldown is at least cooldown"),
            CelRule(
                # Where no document counts the error rate, the window may be as it likes.
                rule="!has(self.errorRatePercent) || self.errorRatePercent == 0.0 || !has(self.minCalls) || "
                "!has(self.windowCalls) || self.minCalls <= self.windowCalls",
                message="the window holds at least minCalls calls, for otherwise the error rate never counts",
                code="SG041",
                field=".windowCalls",
            ),
        ),
    }
)
"""Rules by the model of the block that they are about."""

KEYS: Final[Mapping[tuple[str, str], Schema]] = MappingProxyType(
    {
        # No two engines at one address. Names are not held apart: a key must be said, and names need not be.
        ("EnginePoolSpec", "endpoints"): {
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["address", "port"],
        },
        ("ModelRouteSpec", "pools"): {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["pool"]},
        ("ResilienceSpec", "pools"): {"x-kubernetes-list-type": "set"},
    }
)
"""Lists whose items differ in something, which holds them apart at no cost and gives each an owner of its own."""

ALSO_NULL: Final = frozenset({("Endpoint", "name")})
"""Fields in which nothing may be written for no name, though the model's schema does not say so."""
