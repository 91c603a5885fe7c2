"""Checks that the version a change is meant to replace is still served.

Otherwise two concurrent changes would both succeed, and the later one would silently undo the other.
"""

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from xds_server.admin_api.version_types import ReplacedVersion
from xds_server.model.policy_state import ServingPolicies
from xds_server.model.text import age_text
from xds_server.rollout.history.change_errors import RefusedChangeError, SupersededError
from xds_server.rollout.history.policy_version import PolicyVersion

_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
_DIGEST: Final = re.compile(r"[0-9a-f]{12,32}")
_SHOWN: Final = 3


def check_precondition(
    expect: str, serving: ServingPolicies | None, versions: Sequence[PolicyVersion], number: int, now_unix_s: float
) -> None:
    """``SupersededError`` if another version than ``expect`` is served, with what was served since.

    ``expect`` is a version number or the start of a digest; ``number`` is that of the served version, 0 for none.
    """
    if not expect or serving is None:
        return
    by_number = _NUMBER.fullmatch(expect) is not None
    if not by_number and not _DIGEST.fullmatch(expect):
        raise RefusedChangeError(
            f"{expect[:40]!r} is not a version: use a version number, or at least 12 characters of a digest"
        )
    if expect == str(number) if by_number else _begins(expect, {serving.digest, serving.former}):
        return
    meant = [
        one.number
        for one in versions
        if (one.number == int(expect) if by_number else _begins(expect, {one.digest, one.former}))
    ]
    last = max(meant, default=int(expect) if by_number else 0)
    since = [one for one in reversed(versions) if one.number > last] if meant else []
    came = "; ".join(version_summary(one, now_unix_s) for one in since[:_SHOWN])
    more = f"; and {len(since) - _SHOWN} more" if len(since) > _SHOWN else ""
    now = f"version {number}" if number else f"{serving.digest[:12]}, which is not in the history"
    raise SupersededError(
        f"{'version ' if by_number else ''}{expect} is not served"
        + (f" any more; since then: {came}{more}" if came else f"; now {now}")
        + ". To see the effect of your change now: `switchgear diff`"
    )


def replaced_version(version: PolicyVersion | None, now_unix_s: float) -> ReplacedVersion | None:
    """The version as one that was replaced."""
    if version is None:
        return None
    return ReplacedVersion(
        number=version.number,
        digest=version.digest,
        by=version.by,
        how=version.how,
        age_s=round(max(0.0, now_unix_s - version.at_unix_s), 3),
    )


def version_summary(version: PolicyVersion, now_unix_s: float) -> str:
    """A version in a few words: number, origin, and age."""
    why = f": {version.reason}" if version.reason else ""
    age = age_text(max(0.0, now_unix_s - version.at_unix_s))
    return f"version {version.number} ({version.how}, {age} ago{why})"


def is_served(version: PolicyVersion | None, serving: ServingPolicies | None) -> bool:
    """Whether this version is served."""
    if version is None or serving is None:
        return False
    return same_policies({version.digest, version.former}, {serving.digest, serving.former})


def same_policies(one: AbstractSet[str], other: AbstractSet[str]) -> bool:
    """Whether two sets of digests mean the same policies: by content, or by texts."""
    return bool((one & other) - {""})


def _begins(expect: str, digests: AbstractSet[str]) -> bool:
    return any(one.startswith(expect) for one in digests)
