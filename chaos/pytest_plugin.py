"""pytest fixtures for experiments; pytest finds them where Switchgear is installed.

``switchgear_experiment`` runs a scenario and returns its verdict::

    def test_policies_survive_a_hang(switchgear_experiment):
        verdict = switchgear_experiment("one-hangs", "policies/")
        assert verdict.answer == "yes", verdict.findings

``switchgear_lab`` runs a lab inside an async test (pytest-asyncio or anyio)::

    async def test_hung_engine_is_ejected(switchgear_lab):
        async with switchgear_lab("policies/") as lab:
            async with lab.asking(), lab.strike("hang", engine=1):
                await lab.until(lambda seen: any(one.out for one in seen.decided), "the engine is ejected")
        assert lab.history.requests
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Imported only by tests that use a fixture.
if TYPE_CHECKING:
    from chaos.checks.experiment_verdict import ExperimentVerdict
    from chaos.history.recorded_history import History
    from chaos.lab.history_recorder import HistoryRecorder
    from chaos.lab.lab_session import Lab
    from chaos.scenario.experiment_plan import PlannedOutage

_POLL_S = 0.05


class LabUnderTest:
    """A running lab. ``history`` grows, and is complete after the block."""

    def __init__(self, lab: "Lab", recording: "HistoryRecorder") -> None:
        self.lab = lab
        self._recording = recording

    @property
    def urls(self) -> tuple[str, ...]:
        """URLs of the Envoys."""
        return tuple(one.url for one in self.lab.site.proxies.values())

    @property
    def history(self) -> "History":
        """Events recorded so far."""
        return self._recording.history

    @property
    def verdict(self) -> "ExperimentVerdict":
        """Verdict on the history by the scenario's hypothesis."""
        from chaos.checks.experiment_verdict import verdict  # noqa: PLC0415

        return verdict(self.history)

    def asking(self) -> AbstractAsyncContextManager[None]:
        """Send the scenario's requests inside the block."""
        return self._recording.sending()

    @asynccontextmanager
    async def strike(
        self, kind: str, *, settings: dict[str, Any] | None = None, **target: Any
    ) -> "AsyncIterator[PlannedOutage]":
        """Inject a fault inside the block; kind, settings and target as in a scenario."""
        from chaos.lab.control_port import FaultRequest  # noqa: PLC0415

        order = FaultRequest.model_validate({"fault": {"kind": kind, **(settings or {})}, "target": target})
        async with self.lab.strike(order.fault, order.target) as outage:
            yield outage

    async def until(self, condition: "Callable[[History], object]", what: str, limit_s: float = 60.0) -> None:
        """Wait until the condition holds; fail the test after ``limit_s``."""
        give_up_at_s = time.monotonic() + limit_s
        while not condition(self.history):
            if time.monotonic() > give_up_at_s:
                pytest.fail(f"not within {limit_s:g} s: {what}")
            await asyncio.sleep(_POLL_S)


LabOpener = Callable[..., AbstractAsyncContextManager[LabUnderTest]]


@pytest.fixture
def switchgear_lab(tmp_path: Path) -> LabOpener:
    """``switchgear_lab(subject, scenario="quick", seed=..., pool=...)``: a lab with real Envoys.

    ``subject`` is a policy file or folder, or a preset Envoy (envoy, naive, tuned, static). The scenario, a name
    of the library or a file, gives topology, load and hypothesis; its faults are ignored.
    """

    @asynccontextmanager
    async def opened(
        subject: str | Path, scenario: str | Path = "quick", *, seed: int | None = None, pool: str | None = None
    ) -> AsyncIterator[LabUnderTest]:
        from chaos.lab.history_recorder import record_history  # noqa: PLC0415
        from chaos.lab.lab_session import Lab  # noqa: PLC0415
        from chaos.scenario.scenario_library import chosen_scenarios  # noqa: PLC0415
        from chaos.testbed.subjects import subjects  # noqa: PLC0415

        (one, *_) = chosen_scenarios([str(scenario)])
        (judged, *_) = subjects([str(subject)], pool)
        async with (
            Lab.open(one.experiment(seed), judged, tmp_path / "lab", by_hand=True) as lab,
            record_history(lab, tmp_path / "history.jsonl") as recording,
        ):
            yield LabUnderTest(lab, recording)

    return opened


@pytest.fixture
def switchgear_experiment(tmp_path: Path) -> "Callable[..., ExperimentVerdict]":
    """``switchgear_experiment(scenario, subject, pool=...)``: run the experiment, return its verdict."""

    def judged(scenario: str | Path, subject: str | Path, *, pool: str | None = None) -> "ExperimentVerdict":
        from chaos.checks.experiment_verdict import verdict  # noqa: PLC0415
        from chaos.lab.experiment import run_experiment  # noqa: PLC0415
        from chaos.scenario.scenario_library import chosen_scenarios  # noqa: PLC0415
        from chaos.testbed.subjects import subjects  # noqa: PLC0415

        if _in_a_loop():
            pytest.fail("switchgear_experiment blocks until the end: write `def test_...`, not `async def`")
        (one, *_) = chosen_scenarios([str(scenario)])
        (tried, *_) = subjects([str(subject)], pool)
        return verdict(asyncio.run(run_experiment(one.experiment(), tried, tmp_path / "history.jsonl")))

    return judged


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
