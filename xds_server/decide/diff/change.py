"""One transition, as a value: subject, reason, the policy field behind it, and what reverses it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class ChangeKind(StrEnum):
    """What changed."""

    HEALTH = "health"  # an engine is ejected, drained or returned to rotation
    VERDICT = "verdict"  # its reported verdict, without a change of health
    STANDING = "standing"  # its pod's phase, without a change of health
    EJECTOR = "ejector"  # it stays ejected, for another reason
    KEPT = "kept"  # the capacity floor keeps it in rotation against the evidence
    TRIAL = "trial"  # it gets a part of its share, to prove itself
    CUT = "cut"  # its requests are cut
    SHADOW = "shadow"  # its health, if shadow mode were enforced
    BREAKER = "breaker"
    STRAGGLER = "straggler"
    CEILING = "ceiling"
    DEMAND = "demand"  # demand of a pool, below or above its capacity
    HEDGING = "hedging"
    RETRIES = "retries"  # retried statuses
    LIMITS = "limits"  # time limits
    LADDER = "ladder"  # degradation level
    ZONES = "zones"  # zone split of one zone's calls
    ZONE = "zone"  # most engines of a zone were lost at once
    ORDER = "order"  # an operator order
    TELEMETRY = "telemetry"  # a proxy's reports are missing or back
    POLICIES = "policies"  # another policy version is served
    OBJECT = "object"  # a custom resource is rejected or accepted again
    SOURCE = "source"  # contact with the cluster that policies and engines are read from


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Subject:
    """What a change is about; empty parts do not apply. ``zone`` is an engine's or a calling zone."""

    pool: str = ""
    engine: str = ""
    zone: str = ""
    proxy: str = ""
    role: str = ""

    def __str__(self) -> str:
        """``pool/engine``, ``pool from zone``, ``pool role``: as in status and logs."""
        text = f"{self.pool}/{self.engine}" if self.engine else self.pool
        if self.zone:
            text = f"{text} {self.zone}".strip()
        return f"{text} {self.proxy or self.role}".strip()


_NO_NUMBERS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One transition.

    ``reason`` is the evidence in a sentence, ``numbers`` the figures in it, with the unit in each name. ``rule``
    is the policy field behind it, such as ``ResiliencePolicy.spec.breaker.errorRatePercent``; empty without one
    (an order). ``returns`` says what would reverse it, ``until_s`` (monotonic) when it is evaluated again at the
    latest. ``alarm``: an operator should know now.
    """

    kind: ChangeKind
    subject: Subject
    before: str
    after: str
    reason: str
    rule: str = ""
    returns: str = ""
    until_s: float | None = None
    alarm: bool = False
    numbers: Mapping[str, float] = field(default_factory=lambda: _NO_NUMBERS)
