"""Rules of the xDS tap for the streams of its proxies; several may be active at once. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

FalsifiedOutcome = Literal["", "all-failed", "all-good"]
Corrupted = Literal["", "cds", "eds", "lds", "rds", "rtds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TapRule:
    """Treatment of one proxy's streams, with the fields of ``FalsifyTelemetry`` and ``CorruptConfig``."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    proxy: Annotated[str, Field(min_length=1)]
    lost: bool = False
    says: FalsifiedOutcome = ""
    corrupt: Corrupted = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTreatment:
    """Combined rules for one proxy; the latest falsification wins."""

    lost: bool = False
    says: FalsifiedOutcome = ""
    corrupt: frozenset[str] = frozenset()


class TapRuleError(ValueError):
    """Invalid rule; the message has the cause."""


def parse_tap_rule(answer: Any, proxies: Collection[str]) -> TapRule:
    """Parse a rule from a JSON object; raises TapRuleError, also for unknown proxies."""
    try:
        order = _ORDER.validate_python(answer)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        msg = f"{place}: {first['msg']}" if place else str(first["msg"])
        raise TapRuleError(msg) from error
    if order.proxy not in proxies:
        msg = f"proxy: unknown proxy {order.proxy!r}; use one of {', '.join(proxies)}"
        raise TapRuleError(msg)
    return order


def stream_treatment(orders: Mapping[str, TapRule], proxy: str) -> StreamTreatment:
    """Combine the rules, oldest first, for a proxy."""
    meant = [order for order in orders.values() if order.proxy == proxy]
    return StreamTreatment(
        lost=any(order.lost for order in meant),
        says=next((order.says for order in reversed(meant) if order.says), ""),
        corrupt=frozenset(order.corrupt for order in meant if order.corrupt),
    )


_ORDER: Final = TypeAdapter(TapRule)
