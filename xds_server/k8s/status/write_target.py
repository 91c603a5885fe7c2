"""State of each written object: its cached content, and when to try again."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from xds_server.k8s.kube_api import ApiError
from xds_server.model.backoff import ExponentialBackoff

SLOW_S: Final = 60.0
"""Retry interval for failures that an operator must fix: missing object, kind or permission."""

CALM_S: Final = 5.0
"""Retry interval for an overloaded server without Retry-After."""

RETRY: Final = ExponentialBackoff(first_s=0.5, most_s=30.0)
"""Backoff for a server that fails or does not answer."""

CACHED_FOR_S: Final = 300.0
"""Cache lifetime: changes to our fields by others are repaired this late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget:
    """One object: ``cached`` content and its time (monotonic), last write, and blocked until when.

    ``versions``: those that ``cached`` stands for: its own, and the one known from elsewhere.
    """

    cached: Mapping[str, Any] | None = None
    versions: frozenset[str] = frozenset()
    cached_s: float = 0.0
    written_s: float = -math.inf
    not_before_s: float = -math.inf

    def known(self, version: str, now_s: float) -> Mapping[str, Any] | None:
        """The cached object if current; ``version``: the latest known version, empty if none."""
        if self.cached is None or now_s - self.cached_s > CACHED_FOR_S:
            return None
        return None if version and version not in self.versions else self.cached

    def refreshed(
        self, answer: Mapping[str, Any], version: str, now_s: float, *, wrote: bool = False
    ) -> "WriteTarget":
        """The target after the server returned the object."""
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
    """Effect of a failed request: the new target, and when any request may follow."""

    target: WriteTarget
    all_not_before_s: float = -math.inf


def backoff_after(target: WriteTarget, error: ApiError, failures: int, now_s: float) -> TargetBackoff:
    """Handle ``error`` after ``failures`` consecutive failures caused by the server."""
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
    """Only targets that are still written."""
    return {key: one for key, one in targets.items() if key in wanted}
