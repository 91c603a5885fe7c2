"""Compares a proxy's intended configuration with its actual one: by meaning, then as a line diff.

JSON writers spell the same message in several ways (``0.25s`` and ``0.250s``, 1 and 1.0), order maps freely, and
Envoy rebuilds endpoints from its own tables. None of that is a difference.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import yaml

from xds_server.admin_api.answers import ResourceContent
from xds_server.diagnosis.envoy_dump import DumpedResource
from xds_server.model.type_urls import PUSH_ORDER, SHORT_NAMES

TYPES: Final = tuple(SHORT_NAMES[url] for url in PUSH_ORDER)

_DURATION: Final = re.compile(r"-?\d+(\.\d+)?s")
_WHOLE: Final = re.compile(r"-?\d{1,20}")
_NO_WORD_FOR: Final = {"DRAINING": "UNHEALTHY", "TIMEOUT": "UNHEALTHY"}
"""Envoy's dump reports every host without new requests as unhealthy (seen with Envoy 1.40)."""

_USUAL_OVERPROVISIONING: Final = 140
"""Envoy's default, which is in every dump of endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceDiff:
    """One resource that differs. ``lines`` is a unified diff, intended against actual."""

    type: str
    name: str
    what: str
    lines: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfigDiff:
    """``same`` counts equal resources by type; ``unseen`` has types that could not be compared, and why."""

    same: Mapping[str, int]
    differences: tuple[ResourceDiff, ...]
    unseen: Mapping[str, str]


def config_diff(
    intended: Sequence[ResourceContent],
    found: Iterable[DumpedResource],
    unseen: Mapping[str, str],
    types: Iterable[str],
) -> ProxyConfigDiff:
    """Compare resources of ``/v1/resources`` with those of a live Envoy, for these types.

    A runtime layer that is not intended is the operator's own; any other such resource is a difference.
    """
    wanted = {(one.type, one.name): one for one in intended}
    had = {(one.type, one.name): one for one in found}
    same: dict[str, int] = {}
    differences = []
    for kind in types:
        if kind in unseen:
            continue
        names = sorted({name for of, name in (*wanted, *had) if of == kind})
        for name in names:
            meant, is_held = wanted.get((kind, name)), had.get((kind, name))
            if meant is None and kind == "RTDS":
                continue
            one = _difference(kind, name, meant, is_held)
            if one is None:
                same[kind] = same.get(kind, 0) + 1
            else:
                differences.append(one)
    return ProxyConfigDiff(same=same, differences=tuple(differences), unseen=dict(unseen))


def _difference(
    kind: str, name: str, meant: ResourceContent | None, is_held: DumpedResource | None
) -> ResourceDiff | None:
    origins = meant.origins if meant else ()
    if is_held is None:
        return ResourceDiff(type=kind, name=name, what="missing in the proxy", origins=origins)
    if meant is None:
        return ResourceDiff(type=kind, name=name, what="in the proxy, but not intended")
    if meant.content is None or is_held.content is None:
        return None  # named on both sides, content on neither
    left = canonical(kind, meant.content)
    try:
        right = canonical(kind, is_held.content)
    except (KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        # A saved dump may come from anywhere.
        return ResourceDiff(type=kind, name=name, what=f"not valid for Envoy: {error!r}", origins=origins)
    if left == right:
        return None
    return ResourceDiff(
        type=kind,
        name=name,
        what=is_held.problem or "differs",
        lines=tuple(
            difflib.unified_diff(as_lines(left), as_lines(right), "intended", "in the proxy", lineterm="", n=3)
        ),
        origins=origins,
    )


def as_lines(content: Any) -> list[str]:
    """A resource as lines of YAML, sorted by name."""
    return yaml.safe_dump(content, sort_keys=True, allow_unicode=True, width=110).splitlines()


def canonical(kind: str, content: Any) -> Any:
    """The canonical form of a resource."""
    if kind == "RTDS":
        layer = content.get("layer", content)
        return {key: _number(value) for key, value in _leaves(layer)}
    plain = _plain(content)
    if kind == "EDS":
        return _assignment(plain)
    return {key: value for key, value in plain.items() if key != "@type"} if isinstance(plain, dict) else plain


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {str(key): _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case str():
            return _text(value)
        case float() if value.is_integer():
            return int(value)
    return value


def _text(value: str) -> str | int:
    if _DURATION.fullmatch(value):
        return f"{_decimal(value.removesuffix('s'))}s"
    # Protobuf's JSON writes 64-bit numbers as text.
    return int(value) if _WHOLE.fullmatch(value) else value


def _decimal(text: str) -> str:
    return f"{Decimal(text).normalize():f}"


def _leaves(layer: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Values of a runtime layer by full name: nesting and dots mean the same to Envoy."""
    for key, value in layer.items():
        name = f"{before}.{key}" if before else str(key)
        if isinstance(value, Mapping):
            yield from _leaves(value, name)
        else:
            yield name, value


def _number(value: Any) -> str:
    """A value as Envoy's runtime page writes it: text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return _decimal(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else text


def _assignment(content: dict[str, Any]) -> dict[str, Any]:
    """Endpoints by locality and address, without what Envoy adds to its dump."""
    places: dict[str, Any] = {}
    for part in content.get("endpoints", ()):
        locality = part.get("locality", {})
        place = "/".join(str(locality.get(key, "")) for key in ("region", "zone", "sub_zone"))
        of_place = places.setdefault(f"priority {part.get('priority', 0)}, {place}", {"endpoints": {}})
        if weight := part.get("load_balancing_weight"):
            of_place["load_balancing_weight"] = weight
        for one in part.get("lb_endpoints", ()):
            endpoint = {key: value for key, value in one["endpoint"].items() if value not in ({}, "", [])}
            of_place["endpoints"][_address(endpoint["address"])] = {
                **{key: value for key, value in one.items() if key != "endpoint"},
                "health_status": _NO_WORD_FOR.get(said := one.get("health_status", "UNKNOWN"), said),
                "load_balancing_weight": one.get("load_balancing_weight", 1),
                **{key: value for key, value in endpoint.items() if key != "address"},
            }
    # Envoy drops a locality without endpoints.
    kept = {place: said for place, said in places.items() if said["endpoints"]}
    policy = {
        key: value
        for key, value in content.get("policy", {}).items()
        if not (key == "overprovisioning_factor" and value == _USUAL_OVERPROVISIONING)
    }
    return {
        "cluster_name": content.get("cluster_name", ""),
        "places": kept,
        **({"policy": policy} if policy else {}),
    }


def _address(address: Mapping[str, Any]) -> str:
    match address:
        case {"socket_address": {"address": host, "port_value": port}}:
            return f"{host}:{port}"
        case {"envoy_internal_address": {"server_listener_name": name, **rest}}:
            return f"{name} {rest.get('endpoint_id', '')}".strip()
        case _:
            return str(address)
