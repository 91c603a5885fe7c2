"""Parts for operators: orders, ledger, recording, traces, disk failures."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from xds_server.app.server_events import ServerEvents
from xds_server.ledger import decision_recording
from xds_server.ledger.decision_recording import DecisionRecorder, RecordedInputs
from xds_server.ledger.jsonl_writer import JsonlWriter, tail
from xds_server.ledger.ledger import MAX_BYTES, Ledger, ledger_from
from xds_server.ledger.operator_orders import Orders
from xds_server.observe.tracing.tracing import Tracing
from xds_server.reconcile.pipeline import BuildResult
from xds_server.serve_config import ServeConfig
from xds_server.state.write_failures import WriteFailures


def recorded_inputs(built: BuildResult, texts: Mapping[str, str], unix_s: float) -> RecordedInputs:
    """Inputs of this round; ``texts``: the policies it served."""
    return RecordedInputs(
        now_s=built.inputs.now_s,
        unix_s=unix_s,
        texts=texts,
        fleet=built.inputs.fleet,
        proxies=built.proxies,
        proxies_by_role=built.inputs.proxies_by_role,
        calling_zones=built.calling_zones,
        orders=built.inputs.orders,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorParts:
    """Operator orders, and the records for operators."""

    write_failures: WriteFailures
    tracing: Tracing
    ledger: Ledger
    orders: Orders
    recorder: DecisionRecorder | None
    files: Mapping[str, JsonlWriter]
    """JSON-lines files to write, by task name."""

    @classmethod
    def build(
        cls,
        config: ServeConfig,
        events: ServerEvents,
        *,
        write_failures: WriteFailures,
        began_at_s: Callable[[str, str], float | None],
    ) -> Self:
        """Build the parts; ``began_at_s``: start of the latest call to an engine of a pool.

        Raises ``ConfigError`` if the ledger or recording path is unusable or traces have no destination.
        """
        tracing = Tracing(config.otlp, began_at_s)
        files: dict[str, JsonlWriter] = {}
        if config.ledger:
            files["ledger"] = JsonlWriter(config.ledger, MAX_BYTES)
        ledger = ledger_from(files.get("ledger"), tail(config.ledger) if config.ledger else ())
        ledger.listener = tracing.event
        recorder = None
        if config.record:
            files["recording"] = JsonlWriter(config.record, decision_recording.MAX_BYTES)
            recorder = DecisionRecorder(files["recording"])
        return cls(
            write_failures=write_failures,
            tracing=tracing,
            ledger=ledger,
            orders=Orders(
                config.state_dir, on_change=events.round_requested, tell=ledger.record, disk=write_failures
            ),
            recorder=recorder,
            files=files,
        )

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Run the parts in this task group."""
        tasks.create_task(self.orders.run(), name="orders")
        for name, file in self.files.items():
            tasks.create_task(file.run(), name=name)

    def record(self, built: BuildResult, texts: Mapping[str, str]) -> None:
        """Record a round for ``switchgear replay``."""
        if self.recorder is not None:
            self.recorder.record(recorded_inputs(built, texts, time.time()))
