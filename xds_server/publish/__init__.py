"""From desired snapshots to streams: who is served what, and what happens when a proxy refuses it.

``Publisher`` joins the streams of all proxies to the snapshots of their views, and ``Acceptance`` decides what is
served instead of refused content.
"""

from xds_server.publish.acceptance import Acceptance, Parked, Scope, Verdict
from xds_server.publish.observer import Nack, Observer, Silent
from xds_server.publish.publisher import Publisher
from xds_server.publish.session import ProxyStanding, ProxyState, Session

__all__ = (
    "Acceptance",
    "Nack",
    "Observer",
    "Parked",
    "ProxyStanding",
    "ProxyState",
    "Publisher",
    "Scope",
    "Session",
    "Silent",
    "Verdict",
)
