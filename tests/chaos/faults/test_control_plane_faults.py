"""A real control plane with each fault of the lab; it recovers each time."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from chaos.faults.actions import ProcessRole, PushPolicy
from chaos.faults.bad_policy import BadPolicyFault, PolicyMistake
from chaos.faults.control_plane_frozen import ControlPlaneFrozenFault
from chaos.faults.control_plane_killed import ControlPlaneKilledFault
from chaos.faults.control_plane_restarted_empty import ControlPlaneRestartedEmptyFault
from chaos.faults.fault import Fault
from chaos.lab.control_plane_process import ControlPlaneProcess, start_control_plane
from chaos.lab.injectors.policy_injector import PolicyInjector
from chaos.processes import ChildProcesses, free_ports
from chaos.scenario.experiment_plan import CONTROL_PLANE
from tests.chaos.faults.small_lab import InjectedFault, site, until

POLICIES = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: chat}}
spec:
  model: m
  endpoints: [{{name: e0, address: 127.0.0.1, port: {port}}}]
"""
MISTAKES: tuple[PolicyMistake, ...] = ("syntax", "unknown-field", "half-written", "empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneUnderTest:
    """A control plane and someone who asks it."""

    session: aiohttp.ClientSession
    control_plane: ControlPlaneProcess

    def struck(self, fault: Fault) -> InjectedFault:
        place = site(
            self.session,
            posts={(ProcessRole.CONTROL_PLANE, CONTROL_PLANE): self.control_plane.post},
            control_plane=self.control_plane.admin,
            policies=self.control_plane.policies,
        )
        return InjectedFault(place, fault, CONTROL_PLANE)

    async def says(self, path: str, *, patience_s: float = 60.0) -> object:
        limit = aiohttp.ClientTimeout(total=patience_s)
        async with self.session.get(f"{self.control_plane.admin}{path}", timeout=limit) as answer:
            return await answer.json()

    async def policies(self) -> tuple[str, int]:
        """What it thinks of its policies, and how many errors it names."""
        page = await self.says("/v1/policies")
        assert isinstance(page, dict)
        return page["state"], len(page["errors"])

    async def orders(self) -> list[str]:
        page = await self.says("/v1/orders")
        assert isinstance(page, dict)
        return [one["engine"] for one in page["orders"]]


@pytest.fixture
async def steered(tmp_path: Path) -> AsyncIterator[ControlPlaneUnderTest]:
    async with ChildProcesses() as children, aiohttp.ClientSession() as session:
        text = POLICIES.format(port=free_ports(1)[0])
        yield ControlPlaneUnderTest(
            session=session, control_plane=await start_control_plane(children, tmp_path, text)
        )


async def bad_pushes_are_refused_and_taken_back(steered: ControlPlaneUnderTest) -> None:
    file = steered.control_plane.policies
    good = file.read_bytes()
    assert await steered.policies() == ("accepted", 0)
    for mistake in MISTAKES:
        struck = steered.struck(BadPolicyFault(mistake=mistake))
        await struck.pull()
        await until(lambda: _is(steered, "refused"))
        await struck.release()
        assert file.read_bytes() == good, mistake
        await until(lambda: _is(steered, "accepted"))
    assert [one.name for one in file.parent.iterdir()] == [file.name]


async def test_control_plane_recovers_from_each_fault(
    steered: ControlPlaneUnderTest,
) -> None:
    # One after another, for the sake of its start, which takes seconds.
    await bad_pushes_are_refused_and_taken_back(steered)

    admin = steered.control_plane.admin
    order = {"engine": "e0", "action": "drain", "for_s": 3600, "reason": "kept on disk", "force": True}
    async with steered.session.post(f"{admin}/v1/orders", json=order) as answer:
        assert answer.status == 201, await answer.text()
    known = await steered.orders()

    frozen = steered.struck(ControlPlaneFrozenFault())
    await frozen.pull()
    with pytest.raises(TimeoutError):
        await steered.says("/healthz", patience_s=0.3)
    await frozen.release()
    assert await steered.orders() == known

    killed = steered.struck(ControlPlaneKilledFault())
    await killed.pull()
    with pytest.raises(aiohttp.ClientConnectionError):
        await steered.says("/healthz")
    await killed.release()
    assert await steered.orders() == known

    emptied = steered.struck(ControlPlaneRestartedEmptyFault())
    await emptied.pull()
    with pytest.raises(aiohttp.ClientConnectionError):
        await steered.says("/healthz")
    await emptied.release()
    assert await steered.orders() == []


async def _is(steered: ControlPlaneUnderTest, state: str) -> bool:
    expected, errors = await steered.policies()
    return expected == state and bool(errors) == (state == "refused")


async def test_policy_push_fault_serves_the_last_push_and_restores_the_original_file(tmp_path: Path) -> None:
    file = tmp_path / "lab.yaml"
    file.write_text("good", encoding="utf-8")
    one, other = PushPolicy(kept_share=0.5, text="!"), PushPolicy(kept_share=0.0, text="bad")
    async with aiohttp.ClientSession() as session:
        lever = PolicyInjector(site(session, policies=file))
        await lever.inject(one)
        assert file.read_text(encoding="utf-8") == "go!"
        await lever.inject(other)
        assert file.read_text(encoding="utf-8") == "bad"
        await lever.revert(one)
        assert file.read_text(encoding="utf-8") == "bad"
        await lever.revert(other)
        await lever.revert(other)

    assert file.read_text(encoding="utf-8") == "good"


async def test_policy_fault_is_refused_without_control_plane() -> None:
    async with aiohttp.ClientSession() as session:
        (push,) = BadPolicyFault(text="mine").actions(CONTROL_PLANE)

        assert push == PushPolicy(kept_share=0.0, text="mine")
        assert "no control plane" in PolicyInjector(site(session)).refusal(push)
