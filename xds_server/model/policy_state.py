"""The state of the policies: which are served, and whether the present files were accepted.

Files here include the objects of a cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policies.findings import PolicyError
from policies.model import PolicySet


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedPolicies:
    """Valid policies. ``texts`` maps each file to its text.

    ``digest`` is a hash of the documents' content, independent of files and comments. ``former`` is the digest of
    earlier releases, a hash over names and texts, which their stored versions have.
    """

    policies: PolicySet
    texts: Mapping[str, str]
    digest: str
    former: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedPolicies:
    """Refused files, with every reason."""

    errors: tuple[PolicyError, ...]
    digest: str


PolicyState = AcceptedPolicies | RejectedPolicies


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPolicies:
    """The served policies, with digests as in ``AcceptedPolicies``.

    ``stale``: they are from the last run of the server, not from the files.
    """

    policies: PolicySet
    texts: Mapping[str, str]
    digest: str
    stale: bool
    former: str = ""


def serving_policies(accepted: AcceptedPolicies, *, stale: bool) -> ServingPolicies:
    """These policies as served ones."""
    return ServingPolicies(
        policies=accepted.policies,
        texts=accepted.texts,
        digest=accepted.digest,
        former=accepted.former,
        stale=stale,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """The state of the present policy files; ``since_s`` is monotonic.

    ``state`` is ``unread``, ``accepted``, ``refused``, or with a ``reason``: ``held``, ``failed`` (a bug),
    ``unreached`` (the source has not answered since the start).
    """

    state: str
    digest: str
    since_s: float
    refused: RejectedPolicies | None = None
    reason: str = ""
