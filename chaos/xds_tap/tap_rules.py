"""What a wiretap is told to do to the streams of its proxies; any number of orders may hold at once. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

FalsifiedOutcome = Literal["", "all-failed", "all-good"]
Corrupted = Literal["", "cds", "eds", "lds", "rds", "rtds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TapRule:
    """What happens to one proxy's streams; the fields are those of ``FalsifyTelemetry`` and ``CorruptConfig``."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    proxy: Annotated[str, Field(min_length=1)]
    lost: bool = False
    says: FalsifiedOutcome = ""
    corrupt: Corrupted = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTreatment:
    """What all orders come to for one proxy; of several lies the latest counts."""

    lost: bool = False
    says: FalsifiedOutcome = ""
    corrupt: frozenset[str] = frozenset()


class TapRuleError(ValueError):
    """An order that makes no sense; the message says why."""


def parse_tap_rule(answer: Any, proxies: Collection[str]) -> TapRule:
    """The order that a JSON object describes; OrderError when it is none, or of a proxy that is not there."""
    try:
        order = _ORDER.validate_python(answer)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        msg = f"{place}: {first['msg']}" if place else str(first["msg"])
        raise TapRuleError(msg) from error
    if order.proxy not in proxies:
        msg = f"proxy: there is no {order.proxy!r}; there are {', '.join(proxies)}"
        raise TapRuleError(msg)
    return order


def stream_treatment(orders: Mapping[str, TapRule], proxy: str) -> StreamTreatment:
    """What these orders, in the order of their coming, mean for a proxy."""
    meant = [order for order in orders.values() if order.proxy == proxy]
    return StreamTreatment(
        lost=any(order.lost for order in meant),
        says=next((order.says for order in reversed(meant) if order.says), ""),
        corrupt=frozenset(order.corrupt for order in meant if order.corrupt),
    )


_ORDER: Final = TypeAdapter(TapRule)
