"""Serves desired snapshots to proxies, and handles their NACKs.

``Publisher`` connects streams to the snapshots of their views; ``NackPolicy`` decides what replaces rejected
content.
"""

from xds_server.publish.content_rejections import RecordedNack
from xds_server.publish.nack_decision import NackDecision, NackReport, RollbackScope
from xds_server.publish.nack_policy import KeptRejection, NackPolicy
from xds_server.publish.observer import Nack, NullObserver, PublisherObserver
from xds_server.publish.publisher import Publisher
from xds_server.publish.session import ProxyState, ProxySync, Session

__all__ = (
    "KeptRejection",
    "Nack",
    "NackDecision",
    "NackPolicy",
    "NackReport",
    "NullObserver",
    "ProxyState",
    "ProxySync",
    "Publisher",
    "PublisherObserver",
    "RecordedNack",
    "RollbackScope",
    "Session",
)
