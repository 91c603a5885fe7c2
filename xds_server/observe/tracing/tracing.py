"""Traces as one part of the server: joined to what goes by, or nothing at all where no collector is named."""

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
    """``change_tracer`` is to be told what proxies do; None without a collector. As a context it ends what it
    began.

    ``ConfigError`` when traces cannot go to ``url``.
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
        """Send what is still followed and what waits, for a bounded time."""
        if self.change_tracer is not None:
            self.change_tracer.stop()
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.stop)

    @property
    def event(self) -> Callable[[Event], None] | None:
        """Who is to be told of each event of the ledger."""
        return None if self.change_tracer is None else self.change_tracer.on_event

    def offered(self, digest: str) -> None:
        """Policies were read, or somebody had them served."""
        self._offered = digest, self._clock()

    def adopted(self, digest: str, newest: PolicyVersion | None) -> None:
        """These policies are served from now on; ``newest`` is the last version of the history."""
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
        # Of the round that follows: what comes later, a canary say, is not what was offered then.
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
        """What became of spans; nothing without a collector."""
        return () if self._exporter is None else self._exporter.families()
