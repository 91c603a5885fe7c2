"""What is known of each object that is written to: how it was seen last, and when it may be tried again."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from xds_server.kube.api import ApiError

SLOW_S: Final = 60.0
"""After a refusal that only an operator can mend: an object or kind that is not there, a right that is missing."""

CALM_S: Final = 5.0
"""After a server that had enough, and did not say for how long."""

RETRY_S: Final = (0.5, 30.0)
"""After a server that did not answer, or failed: the first wait, and the longest."""

SEEN_FOR_S: Final = 300.0
"""So long what was seen of an object is taken for true: what others change of our fields is mended as late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One object: as it was ``seen`` last and when (monotonic), written last, and until when it is left alone.

    ``versions`` are those that ``seen`` stands for: its own, and the one that was known of it otherwise.
    """

    seen: Mapping[str, Any] | None = None
    versions: frozenset[str] = frozenset()
    seen_s: float = 0.0
    written_s: float = -math.inf
    not_before_s: float = -math.inf

    def known(self, version: str, now_s: float) -> Mapping[str, Any] | None:
        """The object, where it is still as it was seen; ``version`` is the newest known one, empty if none is."""
        if self.seen is None or now_s - self.seen_s > SEEN_FOR_S:
            return None
        return None if version and version not in self.versions else self.seen

    def looked(self, answer: Mapping[str, Any], version: str, now_s: float, *, wrote: bool = False) -> "Target":
        """The target once the server has answered with the object."""
        metadata = answer.get("metadata")
        own = str(metadata.get("resourceVersion", "")) if isinstance(metadata, Mapping) else ""
        return Target(
            seen=answer,
            versions=frozenset((own, version)),
            seen_s=now_s,
            written_s=now_s if wrote else self.written_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setback:
    """What a failed request means: the target from then on, and when anything at all may be tried again."""

    target: Target
    all_not_before_s: float = -math.inf


def setback(target: Target, error: ApiError, failures: int, now_s: float) -> Setback:
    """What to make of ``error``; so many ``failures`` in a row came before it of which the server is the cause."""
    unseen = replace(target, seen=None)
    if error.conflict:
        return Setback(target=unseen)
    if error.status == 429:
        return Setback(target=target, all_not_before_s=now_s + (error.retry_after_s or CALM_S))
    if 400 <= error.status < 500:
        return Setback(target=replace(unseen, not_before_s=now_s + SLOW_S))
    wait_s = error.retry_after_s or min(RETRY_S[1], RETRY_S[0] * 2.0 ** min(failures, 16))
    return Setback(target=unseen, all_not_before_s=now_s + wait_s)


def kept(targets: Mapping[str, Target], wanted: Collection[str]) -> dict[str, Target]:
    """Only those that are still written to."""
    return {key: one for key, one in targets.items() if key in wanted}
