"""How things stand with the policies: which are served, and what became of the files as they are now.

What is said of files here holds for the objects of a cluster as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policies.model import PolicySet
from xds_server.sources.files import Accepted, Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The policies that are served, with their digests as ``Accepted`` has them.

    ``stale``: they are from the last run of the server, not from the files.
    """

    policies: PolicySet
    texts: Mapping[str, str]
    digest: str
    stale: bool
    former: str = ""


def serving_of(accepted: Accepted, *, stale: bool) -> Serving:
    """These policies, being served."""
    return Serving(
        policies=accepted.policies,
        texts=accepted.texts,
        digest=accepted.digest,
        former=accepted.former,
        stale=stale,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What became of the policy files as they are now; ``since_s`` is monotonic.

    ``state`` is ``unread``, ``accepted``, ``refused``, or with a ``reason``: ``held``, ``failed`` (by a bug),
    ``unreached`` (nobody who has them answered since the start).
    """

    state: str
    digest: str
    since_s: float
    refused: Refused | None = None
    reason: str = ""
