"""What the admin port answers of decisions that are not enforced: part of the shapes of ``status``."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowEngineStatus:
    """What would have become of one engine; see ``ledger.shadow``."""

    pool: str
    engine: str
    reason: str
    times: int
    out_s: float
    failed: int
    succeeded: int
    capacity_percent: float
    out_now: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowPoolStatus:
    """What a ceiling that is not in force would have refused, by estimate."""

    pool: str
    reason: str
    over_s: float
    refused: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStatus:
    """What decisions that are not enforced would have done since the server started."""

    engines: tuple[ShadowEngineStatus, ...]
    pools: tuple[ShadowPoolStatus, ...]
