"""What is known of each object that is written to: how it was seen last, and when it may be tried again."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from xds_server.k8s.kube_api import ApiError
from xds_server.model.backoff import ExponentialBackoff

SLOW_S: Final = 60.0
"""After a refusal that only an operator can mend: an object or kind that is not there, a right that is missing."""

CALM_S: Final = 5.0
"""After a server that had enough, and did not say for how long."""

RETRY: Final = ExponentialBackoff(first_s=0.5, most_s=30.0)
"""After a server that did not answer, or failed."""

CACHED_FOR_S: Final = 300.0
"""So long what was seen of an object is taken for true: what others change of our fields is mended as late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget:
    """One object: as it was ``cached`` last and when (monotonic), written last, and until when it is left alone.

    ``versions`` are those that ``cached`` stands for: its own, and the one that was known of it otherwise.
    """

    cached: Mapping[str, Any] | None = None
    versions: frozenset[str] = frozenset()
    cached_s: float = 0.0
    written_s: float = -math.inf
    not_before_s: float = -math.inf

    def known(self, version: str, now_s: float) -> Mapping[str, Any] | None:
        """The object, where it is still as it was seen; ``version`` is the newest known one, empty if none is."""
        if self.cached is None or now_s - self.cached_s > CACHED_FOR_S:
            return None
        return None if version and version not in self.versions else self.cached

    def refreshed(
        self, answer: Mapping[str, Any], version: str, now_s: float, *, wrote: bool = False
    ) -> "WriteTarget":
        """The target once the server has answered with the object."""
        metadata = answer.get("metadata")
        own = str(metadata.get("resourceVersion", "")) if isinstance(metadata, Mapping) else ""
        return WriteTarget(
            cached=answer,
            versions=frozenset((own, version)),
            cached_s=now_s,
            written_s=now_s if wrote else self.written_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetBackoff:
    """What a failed request means: the target from then on, and when anything at all may be tried again."""

    target: WriteTarget
    all_not_before_s: float = -math.inf


def backoff_after(target: WriteTarget, error: ApiError, failures: int, now_s: float) -> TargetBackoff:
    """What to make of ``error``; so many ``failures`` in a row came before it of which the server is the cause."""
    unseen = replace(target, cached=None)
    if error.conflict:
        return TargetBackoff(target=unseen)
    if error.status == 429:
        return TargetBackoff(target=target, all_not_before_s=now_s + (error.retry_after_s or CALM_S))
    if 400 <= error.status < 500:
        return TargetBackoff(target=replace(unseen, not_before_s=now_s + SLOW_S))
    wait_s = error.retry_after_s or RETRY.wait_s(failures + 1)
    return TargetBackoff(target=unseen, all_not_before_s=now_s + wait_s)


def retained_targets(targets: Mapping[str, WriteTarget], wanted: Collection[str]) -> dict[str, WriteTarget]:
    """Only those that are still written to."""
    return {key: one for key, one in targets.items() if key in wanted}
