"""Decide which resources one NACK is about, without changing any state.

- Envoy names the resource ("Error adding/updating cluster(s) c: ..."): that resource is at fault.
- Envoy names none (a constraint of the message itself), and one resource was new to it: that one is at fault.
- Several were new to it: all are suspect. They are tried again on the same stream, by halves, until each fault
  stands alone (``SuspectTrials``).

Each proxy is judged by itself: a NACK changes what its own stream is sent. Others are affected only by a quorum
(``ContentRejections``).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from xds_server.model.snapshot import Resource

_NEAR: Final = 64
"""Characters before a name that show whether a NACK means it; may include white space."""

_LISTED: Final = re.compile(r"(?:\(s\)|[,;\n])\s*\Z")
_QUOTED: Final = re.compile(r"name:\s*\Z")


class RollbackScope(Enum):
    """Proxies for which rejected content is rolled back."""

    EVERYONE = "everyone"  # a quorum rejected it: held back from all proxies of that version
    PEER = "peer"  # only for the proxy that rejected it
    SUSPECT = "suspect"  # only for this proxy, and one of several suspects that are tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class NackReport:
    """One NACK; ``suspects``: content of the response that was new to the proxy.

    ``co_rejected``: the secret that Envoy rejected where the only suspect is another one.
    """

    type_url: str
    suspects: tuple[Resource, ...]
    reason: str
    co_rejected: Resource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NackDecision:
    """Effect of one NACK: ``at_fault`` is rolled back for the proxy, ``tried`` are suspects to try again.

    ``resend``: may be sent to the proxy again unchanged.
    """

    report: NackReport
    at_fault: tuple[Resource, ...] = ()
    tried: tuple[Resource, ...] = ()
    resend: tuple[Resource, ...] = ()


def decide_nack(report: NackReport) -> NackDecision:
    """Effect of this NACK; nothing if the peer rejected only removals."""
    suspects = report.suspects
    named = tuple(item for item in suspects if _is_named(report.reason, item.name))
    if not named and len(suspects) > 1:
        return NackDecision(report=report, tried=suspects)
    at_fault = named or suspects
    return NackDecision(
        report=report,
        at_fault=at_fault,
        resend=tuple(item for item in suspects if item not in at_fault),
    )


def _is_named(reason: str, name: str) -> bool:
    """Whether a NACK names the resource in Envoy's format.

    ``Error adding/updating cluster(s) a: ..., b: ...`` for what it could not apply; ``name: "a"`` in the text of
    a message that violates its own constraints.
    """
    # No regular expression per name: compiling one per suspect of a large push takes long, and displaces useful
    # entries of the regex cache.
    listed = any(_LISTED.search(before) for before in _before(reason, f"{name}:"))
    return listed or any(_QUOTED.search(before) for before in _before(reason, f'"{name}"'))


def _before(reason: str, text: str) -> Iterator[str]:
    """Text before each occurrence of ``text`` in the reason."""
    at = reason.find(text)
    while at >= 0:
        yield reason[max(0, at - _NEAR) : at]
        at = reason.find(text, at + 1)
