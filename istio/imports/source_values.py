"""Values of other tools as values of policies, or the reason why one is not what it should be.

Each function takes a node and gives what a policy says for it; None where the node is missing or wrong, and then
it is listed.
"""

import math
import re
from typing import Final

from istio.imports.policy_draft import SourcedValue
from istio.imports.source_documents import SourceNode
from policies.quantity import format_duration

_UNIT_S: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(ns|us|µs|ms|s|m|h)")
_LONGEST: Final = 128


def seconds(text: str) -> float | None:
    """Seconds of a duration as Go, Istio and the Gateway API write it (``1h30m``, ``0.5s``, ``100us``)."""
    rest, total = text.strip(), 0.0
    if rest == "0":
        return 0.0
    if not rest or len(rest) > _LONGEST:
        return None
    while rest:
        part = _PART.match(rest)
        if part is None:
            return None
        total = math.fsum((total, float(part[1]) * _UNIT_S[part[2]]))
        rest = rest[part.end() :]
    return total


def duration(node: SourceNode | None) -> SourcedValue | None:
    """A duration, as a policy writes it."""
    if node is None:
        return None
    value = seconds(node.value) if isinstance(node.value, str) else None
    if value is None:
        node.refuse("not a duration such as 250ms or 1m30s")
        return None
    node.take()
    return SourcedValue(value=format_duration(round(value, 9)), node=node)


def digits(said: str) -> int | None:
    """The whole number in the text; None for anything else and for more than 18 digits."""
    return int(said) if re.fullmatch(r"-?[0-9]{1,18}", said) else None


def integer(node: SourceNode | None) -> SourcedValue | None:
    """A whole number; text with digits counts, as Helm's values often are."""
    if node is None:
        return None
    value = node.value
    if isinstance(value, str):
        value = digits(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        node.refuse("not an integer")
        return None
    node.take()
    return SourcedValue(value=value, node=node)


def number(node: SourceNode | None) -> SourcedValue | None:
    """A number; Kubernetes writes some with a sign of percent or as ``{value: 10}``."""
    inner = node.get("value") if node is not None and isinstance(node.value, dict) else node
    if inner is None:
        if node is not None:
            node.refuse("not a number")
        return None
    value = inner.value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        inner.refuse("not a number")
        return None
    inner.take()
    return SourcedValue(value=value, node=inner)


def text(node: SourceNode | None) -> str | None:
    """Text that is not empty."""
    if node is None:
        return None
    if not isinstance(node.value, str):
        node.refuse("not a string")
        return None
    node.take()
    return node.value or None


def flag(node: SourceNode | None) -> bool | None:
    """True or false."""
    if node is None:
        return None
    if not isinstance(node.value, bool):
        node.refuse("not a boolean")
        return None
    node.take()
    return node.value


def texts(node: SourceNode | None) -> dict[str, str]:
    """Names with text, such as labels; other values are listed as refused."""
    if node is None:
        return {}
    found: dict[str, str] = {}
    for name, one in node.fields():
        if isinstance(one.value, str):
            found[name] = one.value
            one.take()
        else:
            one.refuse("not a string")
    return found
