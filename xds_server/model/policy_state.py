"""How things stand with the policies: which are served, and what became of the files as they are now.

What is said of files here holds for the objects of a cluster as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policies.findings import PolicyError
from policies.model import PolicySet


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedPolicies:
    """The files say this. ``texts`` maps each file to its text.

    ``digest`` is a hash of what the documents say, whichever files they stand in, with whatever comments.
    ``former`` is what the version of Switchgear before this one took for it, a hash over names and texts: versions
    that it kept have that one.
    """

    policies: PolicySet
    texts: Mapping[str, str]
    digest: str
    former: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedPolicies:
    """The files cannot be used as they are, for all of these reasons."""

    errors: tuple[PolicyError, ...]
    digest: str


PolicyState = AcceptedPolicies | RejectedPolicies


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPolicies:
    """The policies that are served, with their digests as ``AcceptedPolicies`` has them.

    ``stale``: they are from the last run of the server, not from the files.
    """

    policies: PolicySet
    texts: Mapping[str, str]
    digest: str
    stale: bool
    former: str = ""


def serving_policies(accepted: AcceptedPolicies, *, stale: bool) -> ServingPolicies:
    """These policies, being served."""
    return ServingPolicies(
        policies=accepted.policies,
        texts=accepted.texts,
        digest=accepted.digest,
        former=accepted.former,
        stale=stale,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """What became of the policy files as they are now; ``since_s`` is monotonic.

    ``state`` is ``unread``, ``accepted``, ``refused``, or with a ``reason``: ``held``, ``failed`` (by a bug),
    ``unreached`` (nobody who has them answered since the start).
    """

    state: str
    digest: str
    since_s: float
    refused: RejectedPolicies | None = None
    reason: str = ""
