"""Attacks of a connected proxy, as the messages of one stream."""

from dataclasses import dataclass
from typing import Final

from benchmarks.soak.half_messages import DISCOVERY
from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.telemetry.access_log_service import METHOD as ACCESS_LOGS
from xds_server.telemetry.access_log_service import AccessLogs
from xds_server.telemetry.load_report_service import METHOD as LOAD_REPORTS
from xds_server.telemetry.load_report_service import LoadReport, Node
from xds_server.translate.access_log_config import LOG_NAME
from xds_server.wire.decode import DeltaDiscoveryRequest
from xds_server.wire.varint import delimited

ENEMY: Final = "enemy"
"""Prefix of the node ids of hostile proxies."""

HALF_MESSAGES: Final = "half messages"
HALF_FIRST_MESSAGES: Final = "half first messages"
"""Attacks of ``benchmarks.soak.half_messages``, after a complete first message and without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyAttack:
    """One stream: the first message, then the others in turn until the stream ends."""

    method: str
    first: bytes
    then: tuple[bytes, ...]


def subscription(node: str, type_url: str = CLUSTER) -> bytes:
    """The first request of a proxy."""
    request = DeltaDiscoveryRequest(type_url=type_url)
    request.node.id = node
    return request.SerializeToString()


def proxy_attacks(node: str) -> dict[str, ProxyAttack]:
    """Every attack by name, as this node."""

    def discovery(*then: bytes, first: bytes = b"") -> ProxyAttack:
        return ProxyAttack(method=DISCOVERY, first=first or subscription(node, ENDPOINT), then=then)

    def asking(**fields: object) -> bytes:
        return DeltaDiscoveryRequest(type_url=ENDPOINT, **fields).SerializeToString()

    logs = AccessLogs()
    logs.identifier.node.id, logs.identifier.log_name = node, LOG_NAME
    first_log = logs.SerializeToString()
    first_report = LoadReport(node=Node(id=node).SerializeToString()).SerializeToString()
    names = [f"made-up-{number}" for number in range(9_999)]
    return {
        "empty access log entries": ProxyAttack(
            method=ACCESS_LOGS, first=first_log, then=(delimited(2, b"\x0a\x00" * 4_000),)
        ),
        "many empty access log entries": ProxyAttack(
            method=ACCESS_LOGS, first=first_log, then=(delimited(2, b"\x0a\x00" * 100_000),)
        ),
        "empty clusters": ProxyAttack(method=LOAD_REPORTS, first=first_report, then=(b"\x12\x00" * 32_000,)),
        "many empty clusters": ProxyAttack(method=LOAD_REPORTS, first=first_report, then=(b"\x12\x00" * 900_000,)),
        "names added and dropped": discovery(
            asking(resource_names_subscribe=names), asking(resource_names_unsubscribe=names)
        ),
        "unsubscribed names": discovery(asking(resource_names_unsubscribe=[str(one) for one in range(250_000)])),
        "one name more": discovery(
            asking(resource_names_subscribe=names),
            *(asking(resource_names_subscribe=[f"x{number}"]) for number in range(50)),
            asking(resource_names_unsubscribe=[f"x{number}" for number in range(50)]),
        ),
        "made-up nonces": discovery(asking(response_nonce="made-up")),
        "garbage": discovery(first=b"\xff" * 1_000),
        "a large first message": discovery(first=subscription(node) + b"\x1a\x04name" * 300_000),
    }
