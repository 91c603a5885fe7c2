"""Decide the effect of one NACK, without changing any state.

Envoy does not always name the fault, and not every NACK is caused by the content:

- Envoy names the resource ("Error adding/updating cluster(s) c: ..."): that resource is at fault.
- Envoy names none (a constraint of the message itself): only content that no proxy has accepted is suspect. A
  single suspect is at fault. Several are all rejected, then tried one at a time: an ACK clears the suspect on
  trial, a NACK rolls it back, and the next one follows.
- Content accepted by another proxy is not at fault, but the proxy is (a port in use on its host): it is rolled
  back for no other proxy. The stream remembers not to send it to that proxy again.
- A certificate is at fault once ``SECRET_NACK_LIMIT`` proxies rejected it and none accepted it; until then it is
  rolled back only for the proxies that reject it. The previous one expires, so one broken proxy, even the only
  one, must not keep the new one from the others. Certificates are never tried again: Envoy acknowledges,
  unchecked, content that it rejected before.
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
"""Rejections by distinct proxies after which a certificate is at fault."""

_NEAR: Final = 64
"""Characters before a name that show whether a NACK means it; may include white space."""

_LISTED: Final = re.compile(r"(?:\(s\)|[,;\n])\s*\Z")
_QUOTED: Final = re.compile(r"name:\s*\Z")


class RollbackScope(Enum):
    """Proxies for which rejected content is rolled back."""

    EVERYONE = "everyone"  # rejected, accepted by no proxy
    PEER = "peer"  # accepted by others: only for the proxy that rejected it
    SUSPECT = "suspect"  # one of several suspects, tried one at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class NackReport:
    """One NACK of proxy ``node``; ``suspects``: content of the response that was new to it.

    ``answers_trial`` is false if the response was sent before the current trial of its type. ``co_rejected``: the
    secret that Envoy rejected where the only suspect is another one.
    """

    type_url: str
    suspects: tuple[Resource, ...]
    reason: str
    node: str = ""
    answers_trial: bool = True
    co_rejected: Resource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NackDecision:
    """Effect of one NACK.

    ``at_fault`` is rolled back for ``scope``. ``rejected`` and ``tried`` affect all proxies: rejected now, and
    tried individually later. ``ended_trial``: suspect whose trial ends. ``counted_secrets``: secrets for which
    this node's NACK counts. ``resend``: names that may be sent to the proxy again unchanged.
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
    """Effect of this NACK; changes no state."""
    if not report.suspects:
        # The peer rejected only removals: nothing to roll back.
        return NackDecision(report=report)
    if report.type_url == SECRET:
        return _decide_secrets(report, acked, rejections)
    return (
        _decide_trial(report, rejections)
        or _decide_named(report, acked)
        or _decide_unnamed(report, acked, rejections)
    )


def _decide_trial(report: NackReport, rejections: ContentRejections) -> NackDecision | None:
    """Effect if the response tried one suspect; ``None`` if it did not."""
    trial = rejections.trial(report.type_url)
    on_trial = tuple(item for item in report.suspects if suspect_of(item) == trial)
    if not on_trial or not report.answers_trial:
        return None
    # Regardless of other content, the suspect on trial is the cause.
    return NackDecision(
        report=report,
        scope=RollbackScope.EVERYONE,
        at_fault=on_trial,
        rejected=on_trial,
        ended_trial=on_trial[0],
        resend=_names_without(report.suspects, on_trial),
    )


def _decide_named(report: NackReport, acked: AckedContent) -> NackDecision | None:
    """Effect if Envoy names suspects; ``None`` if it names none."""
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
    """Effect if any content without ACK may be at fault."""
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
    # This may be a late NACK of the same push: the suspect on trial is then sent to this proxy, too.
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
