"""Quantities as operators write them: durations, percentages, names.

A duration is text with a unit (``250ms``, ``2s``, ``1m30s``) and becomes seconds. A bare number is refused: ``5``
may mean seconds or milliseconds.
"""

import ipaddress
import math
import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_WHOLE: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h))+")
DURATION_PATTERN: Final = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"

# Ten years: more is a wrong unit, and Envoy refuses durations that overflow in nanoseconds.
MAX_DURATION_S: Final = 10 * 365 * 24 * 3600.0


def parse_duration(value: Any) -> float:
    """Seconds of ``250ms``, ``2s``, ``15m``, ``1m30s`` or ``0s``; ValueError says what is allowed."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_DURATION_S * 1000:
        msg = f"a duration needs a unit: write {value:.15g}s or {value:.15g}ms"
        raise ValueError(msg)
    if not isinstance(value, str):
        msg = "a duration is a number and a unit: write 250ms, 2s, 15m or 1m30s"
        raise ValueError(msg)  # pydantic reports a ValueError with its place; a TypeError crashes
    text = value.strip()
    if not _WHOLE.fullmatch(text):
        msg = f"{value!r} is not a duration: write a number and a unit (ms, s, m, h), such as 250ms or 1m30s"
        raise ValueError(msg)
    seconds = math.fsum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text))
    if seconds > MAX_DURATION_S:
        msg = f"{value!r} is longer than ten years"
        raise ValueError(msg)
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest common spelling: ``250ms``, ``2s``, ``15m``, ``90s``, ``1h``."""
    if seconds and seconds % 3600 == 0:
        return f"{seconds / 3600:g}h"
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:g}m"
    if seconds and seconds < 1:
        return f"{seconds * 1000:.6g}ms"
    return f"{seconds:.12g}s"


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "examples": ["250ms", "2s", "15m"]}),
]
"""Seconds, written as text with a unit."""

Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
"""A share of a hundred."""

NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
Name = Annotated[str, Field(pattern=NAME_PATTERN, min_length=1, max_length=63)]
"""A Kubernetes name (DNS label): lower-case letters, digits and dashes, at most 63."""

# Brackets, because the default name of an engine with an IPv6 address is [address]:port.
ENGINE_NAME_PATTERN: Final = r"^[A-Za-z0-9\[]([-A-Za-z0-9_.:\]]*[A-Za-z0-9])?$"
EngineName = Annotated[str, Field(pattern=ENGINE_NAME_PATTERN, min_length=1, max_length=253)]
"""Name of one engine inside its pool; ``address:port`` where none is given."""

ZONE_PATTERN: Final = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$|^$"
Zone = Annotated[str, Field(max_length=253, pattern=ZONE_PATTERN)]
"""Zone or region name as in ``topology.kubernetes.io/zone``; empty: not set."""

Revision = Annotated[str, Field(max_length=63, pattern=ZONE_PATTERN)]
"""Revision of a model, such as ``2.1.0``, with the major part before the first dot; empty: not set."""

Port = Annotated[int, Field(ge=1, le=65535, strict=True)]
"""A TCP port."""

ErrorStatus = Annotated[int, Field(ge=400, le=599)]
"""An HTTP error status."""

MAX_RE2_PROGRAM: Final = 100
"""Largest RE2 program that Envoy takes in a route (``re2.max_program_size.error_level``)."""


def parse_re2(value: str) -> str:
    """The text if Envoy takes it as a regular expression; ValueError says why not.

    A route configuration with one expression that Envoy refuses is refused as a whole.
    """
    # Few policies have one, and loading the library takes 20 ms.
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.log_errors = False
    # As Envoy reads it, by bytes: `.` and classes are far larger in UTF-8.
    options.encoding = re2.Options.Encoding.LATIN1
    try:
        size = re2.compile(value.encode(), options).programsize
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        msg = f"RE2, which Envoy uses, refuses {value!r}: {reason}; it has no look-around and no back references"
        raise ValueError(msg) from None
    if size > MAX_RE2_PROGRAM:
        msg = (
            f"{value!r} compiles to {size} RE2 instructions, and Envoy takes {MAX_RE2_PROGRAM}: use fewer or "
            "smaller {m,n} repeats, or prefix"
        )
        raise ValueError(msg)
    return value


Re2 = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(parse_re2)]
"""A regular expression in RE2's syntax."""

_HOST: Final = re.compile(
    r"(?:[A-Za-z0-9_](?:[-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_](?:[-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?\.?"
)


def parse_ip(value: str) -> str:
    """The address as Envoy writes it in its logs; ValueError says what is allowed."""
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        msg = f"{value!r} is not an IP address, such as 10.0.0.7 or fd00::7"
        raise ValueError(msg) from None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(address) if mapped is None else f"::ffff:{mapped}"


def is_ip(value: str) -> bool:
    """Whether it is an IP address and not a host name."""
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def parse_host(value: str) -> str:
    """The text if it is an IP address or a host name; ValueError says what is allowed."""
    if "/" in value:
        msg = f"{value!r} is not an address: remove the scheme and the path"
        raise ValueError(msg)
    if ":" in value and value.count(":") == 1:
        msg = f"{value!r} is not an address: put the port in its own field"
        raise ValueError(msg)
    if ":" in value or not re.search(r"[A-Za-z_]", value):
        return parse_ip(value)
    if not _HOST.fullmatch(value):
        msg = f"{value!r} is neither an IP address nor a host name"
        raise ValueError(msg)
    return value


IpAddress = Annotated[str, Field(min_length=1, max_length=45), AfterValidator(parse_ip)]
"""An IPv4 or IPv6 address, without brackets."""

HostAddress = Annotated[str, Field(min_length=1, max_length=253), AfterValidator(parse_host)]
"""An IP address or a host name."""
