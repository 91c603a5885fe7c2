"""From desired snapshots to streams: who is served what, and what happens when a proxy refuses it.

``Publisher`` joins the streams of all proxies to the snapshots of their views, ``Acceptance`` decides what is
served instead of refused content, and ``Pace`` when the next flush may go out.
"""

from xds_server.publish.acceptance import Acceptance, Parked, Scope, Verdict
from xds_server.publish.observer import Nack, Observer, Silent
from xds_server.publish.pace import Pace
from xds_server.publish.publisher import ProxyState, Publisher, Session

__all__ = (
    "Acceptance",
    "Nack",
    "Observer",
    "Pace",
    "Parked",
    "ProxyState",
    "Publisher",
    "Scope",
    "Session",
    "Silent",
    "Verdict",
)
