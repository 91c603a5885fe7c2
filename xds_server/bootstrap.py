"""The bootstrap an Envoy starts with: who it is, where the control plane is, and nothing that may change later.

The text is ``envoy/bootstrap.yaml`` with a few values filled in, comments and all: an operator will read it. In a
wheel that folder ships inside this package, in a source tree it stands beside it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final, Literal

TEMPLATE: Final = "bootstrap.yaml"
MAX_CONNECTIONS: Final = 50_000
"""Downstream connections after which Envoy protects itself; far above what a fleet of engines can serve."""

_START_CUTTING: Final = """\
# Start Envoy with a drain time of zero: envoy -c THIS --drain-time-s 0
# What a hung engine holds is ended by the removal of a listener, and that takes as long as the drain time."""

_START_DRAINING: Final = """\
# Start Envoy with a drain time no shorter than your longest stream: envoy -c THIS --drain-time-s 900"""

_API_TYPES: Final = {"delta": "DELTA_GRPC", "sotw": "GRPC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """What differs between one Envoy and another.

    ``servers`` are (host, port) of control planes, any of which will do. Empty ``pools`` means all.
    ``admin_port`` 0 takes a free one. ``listen_address`` is where this Envoy binds every listener; empty means as
    the routes say. ``cuts``: whether this Envoy can be told to end what a hung engine holds; it must then be
    started with a drain time of zero.
    """

    node: str
    zone: str = ""
    region: str = ""
    role: Literal["gateway", "sidecar"] = "gateway"
    pools: Sequence[str] = ()
    listen_address: str = ""
    servers: Sequence[tuple[str, int]] = (("127.0.0.1", 18000),)
    admin_port: int = 9901
    protocol: Literal["delta", "sotw"] = "delta"
    max_connections: int = MAX_CONNECTIONS
    cuts: bool = True


def bootstrap_yaml(one: Bootstrap) -> str:
    """The complete bootstrap file of an Envoy."""
    # JSON is YAML, and quotes whatever an operator may have put into a name.
    return Template(_template()).substitute(
        node_id=json.dumps(one.node),
        zone=json.dumps(one.zone),
        region=json.dumps(one.region),
        role=json.dumps(one.role),
        pools=json.dumps(list(one.pools)),
        listen_address=json.dumps(one.listen_address),
        servers=json.dumps([_endpoint(host, port) for host, port in one.servers]),
        admin_port=one.admin_port,
        api_type=_API_TYPES[one.protocol],
        max_connections=one.max_connections,
        cuts=json.dumps(one.cuts),
        start=_START_CUTTING if one.cuts else _START_DRAINING,
    )


def _endpoint(host: str, port: int) -> dict[str, Any]:
    return {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}


def _template() -> str:
    shipped = files(__package__).joinpath("envoy_files", TEMPLATE)
    if shipped.is_file():
        return shipped.read_text(encoding="utf-8")
    return (Path(__file__).parent.parent / "envoy" / TEMPLATE).read_text(encoding="utf-8")
