"""What the ledger is told of versions of the policies, and of canaries."""

from xds_server.decide.changes.change import Change, ChangeKind, Subject
from xds_server.history.version import ORDERED, Version


def version_change(before: Version | None, after: Version) -> Change:
    """That ``after`` is served from now on, where ``before`` was."""
    return Change(
        kind=ChangeKind.POLICIES,
        subject=Subject(),
        before="" if before is None else f"version {before.number}",
        after=f"version {after.number}",
        reason=f"{after.how}: {after.reason}" if after.reason else after.how,
        returns="when the files change" if after.source in ORDERED else "",
    )


def canary_change(after: str, reason: str, *, alarm: bool = False) -> Change:
    """What became of a canary."""
    return Change(
        kind=ChangeKind.POLICIES,
        subject=Subject(),
        before="",
        after=f"canary {after}",
        reason=reason,
        alarm=alarm,
    )
