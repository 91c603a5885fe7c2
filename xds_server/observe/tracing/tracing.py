"""Tracing as a part of the server; does nothing without a collector."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from prometheus_client.core import Metric

from xds_server.ledger.event import Event
from xds_server.model.snapshot import Snapshot
from xds_server.model.view import View
from xds_server.observe.tracing.batch_processor import BatchProcessor, batch_processor
from xds_server.observe.tracing.change_tracer import ChangeTracer, PublishedRound
from xds_server.observe.tracing.propagation import TracedPolicies
from xds_server.reconcile.pipeline import BuildResult
from xds_server.rollout.history.policy_version import PolicyVersion


class Tracing:
    """``change_tracer`` receives proxy events; None without a collector. As a context manager it flushes at exit.

    Raises ``ConfigError`` if traces cannot be sent to ``url``.
    """

    def __init__(
        self,
        url: str,
        began_at_s: Callable[[str, str], float | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._policies = TracedPolicies()
        self._offered: tuple[str, float] | None = None
        self._taken_up_s: float | None = None
        self._exporter: BatchProcessor | None = None
        self.change_tracer: ChangeTracer | None = None
        if url:
            self._exporter = batch_processor(url)
            self.change_tracer = ChangeTracer(
                self._exporter.offer, self._exporter.skip, began_at_s=began_at_s, clock=clock
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Send what is followed or queued, within a time limit."""
        if self.change_tracer is not None:
            self.change_tracer.stop()
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.stop)

    @property
    def event(self) -> Callable[[Event], None] | None:
        """Handler of ledger events; None without a collector."""
        return None if self.change_tracer is None else self.change_tracer.on_event

    def offered(self, digest: str) -> None:
        """Policies were read or applied."""
        self._offered = digest, self._clock()

    def adopted(self, digest: str, newest: PolicyVersion | None) -> None:
        """These policies are served now; ``newest``: last version in the history."""
        offered, self._offered = self._offered, None
        self._taken_up_s = offered[1] if offered is not None and offered[0] == digest else None
        known = newest if newest is not None and newest.digest == digest else None
        self._policies = (
            TracedPolicies(digest=digest)
            if known is None
            else TracedPolicies(version=known.number, digest=digest, author=known.by, source=known.source.value)
        )

    def round(self, built: BuildResult, snapshots: Mapping[View, Snapshot], news_s: float | None) -> None:
        """A round was published."""
        if self.change_tracer is None:
            return
        # Only for the round that follows: later events, e.g. of a canary, have another cause.
        offered_s, self._taken_up_s = self._taken_up_s, None
        self.change_tracer.on_round(
            PublishedRound(
                decisions=built.decisions,
                fleet=built.inputs.fleet,
                stages_s=built.stages_s,
                snapshots=snapshots,
                nodes=built.inputs.nodes,
                policies=self._policies,
                news_s=news_s,
                offered_s=offered_s,
            )
        )

    def families(self) -> Iterable[Metric]:
        """Span outcomes; empty without a collector."""
        return () if self._exporter is None else self._exporter.families()
