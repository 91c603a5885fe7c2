"""The configuration of a live Envoy, from its admin interface: ``/config_dump?include_eds`` and ``/runtime``.

Only resources from a control plane count: the bootstrap's are the operator's own.

Source: Envoy, admin.v3 ConfigDump and its parts.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Content = Mapping[str, Any]

_DUMPS: Final = "type.googleapis.com/envoy.admin.v3."


class DumpError(Exception):
    """Not a dump of an Envoy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedResource:
    """One resource in Envoy. ``problem``: it is warming, or a newer version was refused.

    ``content`` is None if Envoy does not show it; for secrets it is ``_public``.
    """

    type: str
    name: str
    content: Content | None
    problem: str = ""


def dumped_resources(dump: Any) -> tuple[DumpedResource, ...]:
    """Every resource of a ``/config_dump`` that came over xDS; ``DumpError`` if it is not a dump."""
    _is_dump(dump)
    try:
        found = tuple(one for config in dump["configs"] for one in _of(config))
        own = frozenset(name for config in dump["configs"] for name in _from_files(config.get("bootstrap")))
        over_xds = {_assignment(one.content) for one in found if one.type == "CDS" and one.content}
        # Envoy lists the endpoints of every cluster from xDS, including those with inline endpoints.
        known = {"EDS": lambda name: name in over_xds, "SDS": lambda name: name not in own}
        return tuple(one for one in found if known.get(one.type, bool)(one.name))
    except (KeyError, TypeError, AttributeError) as error:
        raise DumpError(f"not a valid Envoy /config_dump: {error!r}") from error


def _from_files(bootstrap: Any) -> Iterator[str]:
    """Names of secrets that the bootstrap takes from files, such as the proxy's own certificate."""
    match bootstrap:
        case {"name": str(name), "sds_config": {"path_config_source": _} | {"path": _}}:
            yield name
        case Mapping():
            for one in bootstrap.values():
                yield from _from_files(one)
        case list():
            for one in bootstrap:
                yield from _from_files(one)


def node_of(dump: Any) -> str:
    """The node id in the bootstrap of a dump; empty without one, ``DumpError`` if it is not a dump."""
    return str(_node(dump).get("id", ""))


def node_attributes(dump: Any) -> tuple[tuple[str, str], ...]:
    """Node attributes that select its configuration, as parameters of ``/v1/resources``; ``DumpError``."""
    node = _node(dump)
    place, metadata = node.get("locality"), node.get("metadata")
    said = [(name, place.get(name)) for name in ("region", "zone")] if isinstance(place, Mapping) else []
    if isinstance(metadata, Mapping):
        said += [(name, metadata.get(name)) for name in ("role", "listen_address")]
        said += [("cuts", "true" if metadata.get("cuts") is True else "")]
        pools = metadata.get("pools")
        said += [("pool", pool) for pool in pools] if isinstance(pools, list) else []
    return tuple((name, value) for name, value in said if isinstance(value, str) and value)


def _node(dump: Any) -> Content:
    _is_dump(dump)
    for config in dump["configs"]:
        match config:
            case {"@type": kind, "bootstrap": {"node": Mapping() as node}} if (
                kind == f"{_DUMPS}BootstrapConfigDump"
            ):
                return node
    return {}


def _is_dump(dump: Any) -> None:
    if not isinstance(dump, Mapping) or not isinstance(dump.get("configs"), list):
        raise DumpError("not an Envoy /config_dump: `configs` is missing")


def runtime_layers(page: Any) -> tuple[DumpedResource, ...]:
    """The layers of ``/runtime`` with their values as text; Envoy does not show which came over xDS.

    If a later layer overrides a key, ``content`` has the later value: a manual change (``/runtime_modify``) leaves
    the layer itself unchanged.
    """
    try:
        names, entries = page["layers"], page.get("entries", {})
        return tuple(_layer(number, names, entries) for number in range(len(names)))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DumpError(f"not an Envoy /runtime page: {error!r}") from error


def _layer(number: int, names: Sequence[str], entries: Mapping[str, Any]) -> DumpedResource:
    content, overruled = {}, {}
    for key, entry in entries.items():
        said = [(name, value) for name, value in zip(names, entry["layer_values"], strict=True) if value != ""]
        if entry["layer_values"][number] == "":
            continue
        by, content[key] = said[-1]
        if by != names[number]:
            overruled[key] = by
    trouble = ", ".join(f"{key} is overridden by layer {by}" for key, by in sorted(overruled.items()))
    return DumpedResource(type="RTDS", name=names[number], content=content, problem=trouble)


def _of(config: Content) -> Iterator[DumpedResource]:
    match str(config.get("@type", "")).removeprefix(_DUMPS):
        case "ClustersConfigDump":
            yield from _clusters(config)
        case "EndpointsConfigDump":
            for one in config.get("dynamic_endpoint_configs", ()):
                content = one["endpoint_config"]
                yield DumpedResource(type="EDS", name=content["cluster_name"], content=content)
        case "ListenersConfigDump":
            yield from _listeners(config)
        case "RoutesConfigDump":
            for one in config.get("dynamic_route_configs", ()):
                content = one.get("route_config")
                if content is not None:
                    yield DumpedResource(type="RDS", name=content["name"], content=content, problem=_error(one))
        case "EcdsConfigDump":
            for one in config.get("ecds_filters", ()):
                content = one["ecds_filter"]
                yield DumpedResource(type="ECDS", name=content["name"], content=content, problem=_error(one))
        case "SecretsConfigDump":
            yield from _secrets(config)


def _secrets(config: Content) -> Iterator[DumpedResource]:
    for one in config.get("dynamic_active_secrets", ()):
        yield DumpedResource(type="SDS", name=one["name"], content=_public(one.get("secret")), problem=_error(one))
    for one in config.get("dynamic_warming_secrets", ()):
        yield DumpedResource(type="SDS", name=one["name"], content={}, problem=_error(one) or "not received yet")


def _public(secret: Any) -> Content | None:
    """SHA-256 of the certificates in a secret; None if Envoy shows none. It never shows keys."""
    match secret:
        case {"tls_certificate": {"certificate_chain": {"inline_bytes": str(text)}}}:
            name = "certificate_chain_sha256"
        case {"validation_context": {"trusted_ca": {"inline_bytes": str(text)}}}:
            name = "trusted_ca_sha256"
        case _:
            return None
    try:
        return {name: hashlib.sha256(base64.b64decode(text, validate=True)).hexdigest()}
    except ValueError as error:
        raise DumpError(f"secret {secret.get('name')!r} is not base64") from error


def _clusters(config: Content) -> Iterator[DumpedResource]:
    active = {one["cluster"]["name"]: one for one in config.get("dynamic_active_clusters", ())}
    warming = {one["cluster"]["name"]: one for one in config.get("dynamic_warming_clusters", ())}
    for name, one in active.items():
        trouble = "a newer version is warming" if name in warming else _error(one)
        yield DumpedResource(type="CDS", name=name, content=one["cluster"], problem=trouble)
    for name, one in warming.items():
        if name not in active:
            yield DumpedResource(type="CDS", name=name, content=one["cluster"], problem="warming, not in use yet")


def _assignment(cluster: Content) -> str:
    """The name of the endpoints that a cluster requests; empty if none."""
    if cluster.get("type") != "EDS":
        return ""
    return str(cluster.get("eds_cluster_config", {}).get("service_name") or cluster["name"])


def _listeners(config: Content) -> Iterator[DumpedResource]:
    for one in config.get("dynamic_listeners", ()):
        trouble = _error(one)
        state = one.get("active_state")
        if state is None and "warming_state" in one:
            state, trouble = one["warming_state"], trouble or "warming, not in use yet"
        elif "warming_state" in one:
            trouble = trouble or "a newer version is warming"
        if state is not None and "listener" in state:
            yield DumpedResource(type="LDS", name=one["name"], content=state["listener"], problem=trouble)
        elif trouble:
            yield DumpedResource(type="LDS", name=one["name"], content={}, problem=trouble)


def _error(one: Content) -> str:
    details = (one.get("error_state") or {}).get("details", "")
    return f"Envoy refused a newer version: {details}" if details else ""
