"""Common format of times, shares and names in findings."""

from collections.abc import Iterable, Sequence

from chaos.history.recorded_history import Outage

_MOST_NAMES = 6


def seconds(value_s: float) -> str:
    """``230 ms``, ``2.45 s``, ``12.3 s``."""
    if abs(value_s) < 1.0:
        return f"{1000 * value_s:.0f} ms"
    return f"{value_s:.2f} s" if abs(value_s) < 10.0 else f"{value_s:.1f} s"


def moment(at_s: float) -> str:
    """A time of the experiment, always in seconds: ``12.3 s``."""
    return f"{at_s:.1f} s"


def percent(value: float) -> str:
    """``91.3 %``; never rounded up to 100."""
    text = f"{value:.1f} %"
    return "just under 100 %" if value < 100.0 and text == "100.0 %" else text


def names(some: Iterable[str]) -> str:
    """``e0, e1 and e2``; a long list is cut: ``e0, e1 and 5 more``."""
    ordered = list(dict.fromkeys(some))
    if len(ordered) > _MOST_NAMES:
        return f"{', '.join(ordered[:_MOST_NAMES])} and {len(ordered) - _MOST_NAMES} more"
    return " and ".join([", ".join(ordered[:-1]), ordered[-1]]) if len(ordered) > 1 else "".join(ordered)


def count(number: int, what: str, many: str = "") -> str:
    """``1 request``, ``4 requests``, ``1 history``, ``2 histories``."""
    return f"{number} {what if number == 1 else many or what + 's'}"


def faults(outages: Sequence[Outage]) -> str:
    """``hang of e0 and e1 (10.0 s to 20.0 s)`` per outage; a long list is cut."""
    told = [
        f"{one.kind} of {names(one.targets)} ({moment(one.start_s)} to "
        f"{'the end' if one.end_s is None else moment(one.end_s)})"
        for one in outages
    ]
    return names(told) or "no fault"
