"""From desired snapshots to streams: who is served what, and what happens when a proxy refuses it.

``Publisher`` joins the streams of all proxies to the snapshots of their views, and ``NackPolicy`` decides what is
served instead of refused content.
"""

from xds_server.publish.nack_policy import NackAttribution, NackPolicy, RejectedContent, RollbackScope
from xds_server.publish.observer import Nack, NullObserver, PublisherObserver
from xds_server.publish.publisher import Publisher
from xds_server.publish.session import ProxyState, ProxySync, Session

__all__ = (
    "Nack",
    "NackAttribution",
    "NackPolicy",
    "NullObserver",
    "ProxyState",
    "ProxySync",
    "Publisher",
    "PublisherObserver",
    "RejectedContent",
    "RollbackScope",
    "Session",
)
