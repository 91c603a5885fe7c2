"""From desired snapshots to streams: what each proxy is served, and what follows from its NACK.

``Publisher`` joins the streams of all proxies to the snapshots of their views, and ``NackPolicy`` decides what is
served instead of rejected content.
"""

from xds_server.publish.nack_decision import NackDecision, NackReport, RollbackScope
from xds_server.publish.nack_policy import NackPolicy, RejectedContent
from xds_server.publish.observer import Nack, NullObserver, PublisherObserver
from xds_server.publish.publisher import Publisher
from xds_server.publish.session import ProxyState, ProxySync, Session

__all__ = (
    "Nack",
    "NackDecision",
    "NackPolicy",
    "NackReport",
    "NullObserver",
    "ProxyState",
    "ProxySync",
    "Publisher",
    "PublisherObserver",
    "RejectedContent",
    "RollbackScope",
    "Session",
)
