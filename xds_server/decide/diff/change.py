"""One transition, as a value: what became of whom, why, which field of the policies ruled it, what reverses it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class ChangeKind(StrEnum):
    """What changed."""

    HEALTH = "health"  # an engine takes new requests, or no longer does
    VERDICT = "verdict"  # what is said of it, without a change of health
    STANDING = "standing"  # what its orchestrator says of it, without a change of health
    EJECTOR = "ejector"  # it stays out, and for another reason
    KEPT = "kept"  # the evidence asks for it to leave, and the floor keeps it in
    TRIAL = "trial"  # it gets a part of its share, to prove itself
    CUT = "cut"  # the requests it holds are ended
    SHADOW = "shadow"  # it would be out, if that were enforced
    BREAKER = "breaker"
    STRAGGLER = "straggler"
    CEILING = "ceiling"
    DEMAND = "demand"  # more is asked of a pool than it can serve
    HEDGING = "hedging"
    RETRIES = "retries"  # which answers are tried again
    LIMITS = "limits"  # time limits
    LADDER = "ladder"  # level of degradation
    ZONES = "zones"  # how calls of one zone are shared out
    ZONE = "zone"  # most of a zone's engines went at once
    ORDER = "order"  # an operator's
    TELEMETRY = "telemetry"  # proxies tell what they see, or no longer do
    POLICIES = "policies"  # another version of them is served
    SOURCE = "source"  # the cluster that policies and engines are read from is in touch, or is not


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Subject:
    """Whom a change is about; what is empty does not matter. ``zone`` is an engine's or a calling zone."""

    pool: str = ""
    engine: str = ""
    zone: str = ""
    proxy: str = ""
    role: str = ""

    def __str__(self) -> str:
        """``pool/engine``, ``pool from zone``, ``pool role``: as status and logs show it."""
        text = f"{self.pool}/{self.engine}" if self.engine else self.pool
        if self.zone:
            text = f"{text} {self.zone}".strip()
        return f"{text} {self.proxy or self.role}".strip()


_NO_NUMBERS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One transition.

    ``reason`` is the evidence in a sentence, ``numbers`` the figures in it, with the unit in each name. ``rule``
    is the field that ruled it, as ``ResiliencePolicy.spec.breaker.errorRatePercent``; empty where none did (an
    order). ``returns`` says what would reverse it, ``until_s`` (monotonic) when at the latest it is looked at
    again. ``alarm``: somebody should know now.
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
