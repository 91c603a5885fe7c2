"""GPU faults: lines for the NVML double of an engine's agent."""

from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from chaos.faults.actions import FaultAction, ProcessRole, SetGpuState
from chaos.gpu_double.nvml_double import write_control
from chaos.lab.lab_handles import InjectionError, LabHandles
from chaos.processes import ProcessError


class GpuInjector:
    """Actions on one GPU are combined; the newest wins per key."""

    handles: ClassVar[tuple[type, ...]] = (SetGpuState,)

    def __init__(self, site: LabHandles) -> None:
        self._site = site
        self._held: dict[str, list[SetGpuState]] = defaultdict(list)

    def refusal(self, pull: FaultAction) -> str:
        assert isinstance(pull, SetGpuState)  # noqa: S101 -- what it handles
        engine = self._site.engines.get(pull.engine)
        if engine is None:
            return f"unknown engine {pull.engine}"
        if engine.agent_port is not None and engine.gpu_file is None:
            return f"the agent of {pull.engine} runs without the NVML double"
        return ""

    async def inject(self, pull: FaultAction) -> None:
        assert isinstance(pull, SetGpuState)  # noqa: S101 -- what it handles
        self._held[pull.engine].append(pull)
        self._write(pull.engine, self._held[pull.engine])

    async def revert(self, pull: FaultAction) -> None:
        assert isinstance(pull, SetGpuState)  # noqa: S101 -- what it handles
        held = self._held[pull.engine]
        if pull not in held:
            return
        others = list(held)
        others.remove(pull)
        self._write(pull.engine, others)
        agent = self._site.posts.get((ProcessRole.AGENT, pull.engine))
        if pull.reset and agent is not None and agent.running:
            # Agents remember an XID for an hour, because NVML has no event for a reset: a restart clears it.
            try:
                await agent.kill()
                await agent.restart()
            except ProcessError as problem:
                raise InjectionError(str(problem)) from problem
        held.remove(pull)
        # Another fault may have rewritten the file with this one meanwhile.
        self._write(pull.engine, held)

    def _write(self, engine: str, pulls: Sequence[SetGpuState]) -> None:
        path = self._site.engines[engine].gpu_file
        if path is not None:
            write_control(path, control_lines(pulls))


def control_lines(held: Sequence[SetGpuState]) -> Sequence[str]:
    """Lines of the actions, with XIDs numbered in order: the double reports each number once."""
    lines: list[str] = []
    xids = 0
    for line in (line for pull in held for line in pull.lines):
        if line.startswith("xid "):
            xids += 1
            _, _, rest = line.removeprefix("xid ").partition(" ")
            lines.append(f"xid {xids} {rest}")
        else:
            lines.append(line)
    return lines
