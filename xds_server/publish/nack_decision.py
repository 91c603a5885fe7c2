"""What follows from one NACK, decided from what is known and before anything is changed.

Envoy does not always say what was wrong, and not every NACK is the fault of the content:

- Envoy names the resource ("Error adding/updating cluster(s) c: ..."): that one is at fault.
- Envoy names none (a constraint of the message itself): only content that no proxy has accepted is suspect.
  One suspect is at fault. Several are all rejected, then tried one at a time: an ACK clears the one on trial,
  a NACK rolls it back, and the next one is tried.
- What another proxy has accepted is not the fault of the content but of the proxy (a port in use on its host): it
  is rolled back for no other proxy. The stream remembers not to send it to that proxy again.
- A certificate is at fault once ``SECRET_NACK_LIMIT`` proxies rejected it and none has accepted it; until then it
  is rolled back only for the proxies that reject it. The one before it expires by itself, so one broken proxy, be
  it the only one there, must not keep the new one from the others. None is ever tried again: Envoy confirms
  unchecked what it has rejected before.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from xds_server.model.snapshot import Resource
from xds_server.model.type_urls import SECRET
from xds_server.publish.acked_content import AckedContent
from xds_server.publish.content_rejections import ContentRejections, suspect_of

SECRET_NACK_LIMIT: Final = 3
"""Proxies that reject a certificate before the certificate counts as at fault."""

_NEAR: Final = 64
"""Characters before a name that tell whether a NACK means it: white space may stand between."""

_LISTED: Final = re.compile(r"(?:\(s\)|[,;\n])\s*\Z")
_QUOTED: Final = re.compile(r"name:\s*\Z")


class RollbackScope(Enum):
    """For which proxies rejected content is rolled back."""

    EVERYONE = "everyone"  # rejected, and accepted by no proxy
    PEER = "peer"  # others accepted it: only the proxy that rejected it goes without
    SUSPECT = "suspect"  # one of several; each is tried on its own


@dataclass(frozen=True, slots=True, kw_only=True)
class NackReport:
    """One NACK of the proxy ``node``; ``suspects`` is everything in the response that was new to it.

    ``answers_trial`` is false when the response went out before the current trial of its type began.
    ``co_rejected`` is the secret that Envoy rejected where the only suspect is another one.
    """

    type_url: str
    suspects: tuple[Resource, ...]
    reason: str
    node: str = ""
    answers_trial: bool = True
    co_rejected: Resource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NackDecision:
    """What follows from one NACK.

    ``at_fault`` are rolled back for ``scope``. ``rejected`` and ``tried`` change what is served to all:
    the first are rejected from now on, the second tried on their own later. ``ended_trial`` is the suspect
    whose trial ends. ``counted_secrets`` are secrets of which the NACK of this node counts. ``resend`` are the
    names that the proxy may be sent again unchanged.
    """

    report: NackReport
    scope: RollbackScope = RollbackScope.PEER
    at_fault: tuple[Resource, ...] = ()
    rejected: tuple[Resource, ...] = ()
    tried: tuple[Resource, ...] = ()
    ended_trial: Resource | None = None
    counted_secrets: tuple[Resource, ...] = ()
    resend: tuple[str, ...] = ()


def decide_nack(report: NackReport, acked: AckedContent, rejections: ContentRejections) -> NackDecision:
    """What follows from this NACK; changes nothing."""
    if not report.suspects:
        # The peer rejected nothing but removals: there is nothing to roll back.
        return NackDecision(report=report)
    if report.type_url == SECRET:
        return _decide_secrets(report, acked, rejections)
    return (
        _decide_trial(report, rejections)
        or _decide_named(report, acked)
        or _decide_unnamed(report, acked, rejections)
    )


def _decide_trial(report: NackReport, rejections: ContentRejections) -> NackDecision | None:
    """What follows where the response was sent to try one suspect; ``None`` where it was not."""
    trial = rejections.trial(report.type_url)
    on_trial = tuple(item for item in report.suspects if suspect_of(item) == trial)
    if not on_trial or not report.answers_trial:
        return None
    # Whatever else was in the response, the one on trial was sent because it is suspected.
    return NackDecision(
        report=report,
        scope=RollbackScope.EVERYONE,
        at_fault=on_trial,
        rejected=on_trial,
        ended_trial=on_trial[0],
        resend=_names_without(report.suspects, on_trial),
    )


def _decide_named(report: NackReport, acked: AckedContent) -> NackDecision | None:
    """What follows where Envoy names suspects; ``None`` where it names none."""
    named = tuple(item for item in report.suspects if _is_named(report.reason, item.name))
    if not named:
        return None
    unacked = tuple(item for item in named if not acked.is_acked(item))
    return NackDecision(
        report=report,
        scope=RollbackScope.EVERYONE if unacked else RollbackScope.PEER,
        at_fault=unacked or named,
        rejected=unacked,
        resend=_names_without(report.suspects, unacked or named),
    )


def _decide_unnamed(report: NackReport, acked: AckedContent, rejections: ContentRejections) -> NackDecision:
    """What follows where any content that no proxy has accepted may be at fault."""
    suspects = report.suspects
    unacked = tuple(item for item in suspects if not acked.is_acked(item))
    if not unacked:
        return NackDecision(report=report, at_fault=suspects)
    new = tuple(item for item in unacked if not rejections.is_rejected(item))
    if len(unacked) == 1:
        return NackDecision(
            report=report,
            scope=RollbackScope.EVERYONE,
            at_fault=unacked,
            rejected=new,
            resend=_names_without(suspects, unacked),
        )
    # The NACK may be a late one of the same push: the suspect on trial then goes to this proxy too.
    next_trial = rejections.trial(report.type_url) or (suspect_of(new[0]) if new else None)
    return NackDecision(
        report=report,
        scope=RollbackScope.SUSPECT,
        at_fault=unacked,
        rejected=new,
        tried=new,
        resend=(
            *_names_without(suspects, unacked),
            *(item.name for item in unacked if suspect_of(item) == next_trial),
        ),
    )


def _decide_secrets(report: NackReport, acked: AckedContent, rejections: ContentRejections) -> NackDecision:
    unacked = tuple(item for item in report.suspects if not acked.is_acked(item))
    rejected = tuple(
        item for item in unacked if len(rejections.nacked_by(item) | {report.node}) >= SECRET_NACK_LIMIT
    )
    at_fault = unacked or report.suspects
    return NackDecision(
        report=report,
        scope=RollbackScope.EVERYONE if rejected else RollbackScope.PEER,
        at_fault=at_fault,
        rejected=rejected,
        counted_secrets=unacked,
        resend=_names_without(report.suspects, at_fault),
    )


def _names_without(suspects: Collection[Resource], at_fault: Collection[Resource]) -> tuple[str, ...]:
    names = {item.name for item in at_fault}
    return tuple(item.name for item in suspects if item.name not in names)


def _is_named(reason: str, name: str) -> bool:
    """Whether a NACK names the resource, the way Envoy does.

    ``Error adding/updating cluster(s) a: ..., b: ...`` for what it could not apply; ``name: "a"`` in the text of a
    message that breaks its own constraints.
    """
    # Not an expression for each name: compiling one for each suspect of a large push takes long, and fills the
    # cache of expressions with those that are not used again.
    listed = any(_LISTED.search(before) for before in _before(reason, f"{name}:"))
    return listed or any(_QUOTED.search(before) for before in _before(reason, f'"{name}"'))


def _before(reason: str, text: str) -> Iterator[str]:
    """For each time the text stands in the reason, the end of what stands before it."""
    at = reason.find(text)
    while at >= 0:
        yield reason[max(0, at - _NEAR) : at]
        at = reason.find(text, at + 1)
