"""Hand-made histories: the experiment begins at 100 s, the fault at 110 s; it ends at 120 s, and all at 130 s."""

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from benchmarks.failover.experiment_history import EngineAttempt, ExperimentHistory
from benchmarks.failover.failover_scenarios import EngineOutage
from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.history_events import ProxySample
from chaos.history.request_outcomes import OutcomeReason, RequestOutcome
from chaos.processes import envoy_command

BEGAN_S, FAULT_S, HEALED_S, END_S = 100.0, 110.0, 120.0, 130.0


class Story:
    """Builders of outcomes, attempts, samples and outages; the plain one of each is one that went well."""

    fault_s = FAULT_S
    healed_s = HEALED_S

    @staticmethod
    def outcome(
        number: int,
        at_s: float,
        *,
        reason: OutcomeReason = OutcomeReason.OK,
        latency_s: float = 0.5,
        **more: object,
    ) -> RequestOutcome:
        """A request that arrived at ``at_s``."""
        plain = RequestOutcome(
            request_id=f"load-1-{number}",
            target="proxy-0",
            streaming=False,
            arrived_at_s=at_s,
            lag_s=0.0,
            status=200,
            reason=reason,
            first_token_s=None,
            latency_s=latency_s,
            tokens=10,
        )
        return replace(plain, **more)  # type: ignore[arg-type] # a test's settings

    @staticmethod
    def attempt(
        number: int,
        engine: int,
        at_s: float,
        *,
        fate: Fate = Fate.FINISHED,
        slot_s: float = 0.5,
        wait_s: float | None = 0.0,
        closed_s: float | None = None,
        reason: str = "",
    ) -> EngineAttempt:
        """A call that arrived at ``at_s`` and got its slot ``wait_s`` later, or never."""
        started_s = None if wait_s is None else at_s + wait_s
        ended_s = at_s + (wait_s or 0.0) + slot_s
        return EngineAttempt(
            engine=engine,
            request_id=f"load-1-{number}",
            fate=fate,
            reason=reason,
            arrived_at_s=at_s,
            closed_at_s=ended_s if closed_s is None else closed_s,
            started_at_s=started_s,
            slot_s=slot_s if wait_s is not None else 0.0,
        )

    @staticmethod
    def sample(
        at_s: float,
        *,
        proxy: int = 0,
        in_flight: Mapping[int, int] = MappingProxyType({}),
        ceiling: float | None = None,
        retries: int | None = None,
        refused: int | None = None,
    ) -> ProxySample:
        """A sample of an Envoy's counters at ``at_s``."""
        return ProxySample(
            at_s=at_s - BEGAN_S,
            proxy=f"p{proxy}",
            in_flight={f"e{engine}": count for engine, count in in_flight.items()},
            sent={},
            ceiling=ceiling,
            retries=retries,
            refused=refused,
        )

    @staticmethod
    def outage(engine: int, fault: object, start_s: float = FAULT_S, end_s: float = HEALED_S) -> EngineOutage:
        return EngineOutage(engine=engine, fault=fault, start_s=start_s, end_s=end_s)  # type: ignore[arg-type]

    @staticmethod
    def history(
        *outages: EngineOutage,
        outcomes: list[RequestOutcome] | None = None,
        attempts: list[EngineAttempt] | None = None,
        **more: object,
    ) -> ExperimentHistory:
        plain = ExperimentHistory(
            began_s=BEGAN_S,
            fault_s=FAULT_S,
            healed_s=HEALED_S,
            end_s=END_S,
            outages=outages,
            outcomes=outcomes or [],
            attempts=sorted(attempts or [], key=lambda one: one.arrived_at_s),
        )
        return replace(plain, **more)  # type: ignore[arg-type] # a test's settings


@pytest.fixture
def story() -> type[Story]:
    return Story


@pytest.fixture
def envoy_takes() -> Callable[[Path], None]:
    """Have a real Envoy judge the configuration in a file."""

    def judged(path: Path) -> None:
        checked = subprocess.run(
            [*envoy_command(path), "--mode", "validate"], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr

    return judged
