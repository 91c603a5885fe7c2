"""Agents beside the engines of a lab, each in a process of its own."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from chaos.faults.actions import ProcessRole
from chaos.lab.process_slot import ProcessSlot
from chaos.processes import ChildProcesses, free_ports


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProcess:
    """One agent. ``http`` is its port for probes and drain, ``grpc`` the one at which it reports."""

    post: ProcessSlot
    http: int
    grpc: int


def agent_process(
    children: ChildProcesses,
    engine: str,
    engine_port: int,
    slots: int,
    *,
    gpu: Mapping[str, str] | None = None,
) -> AgentProcess:
    """An agent that is not started yet.

    ``gpu`` is the environment that shows it the double of a GPU; without it no GPU is looked for.
    """
    # Fixed, so that an agent that comes back is found where it was.
    http, grpc = free_ports(2)
    argv = [
        *(sys.executable, "-m", "engine.agent", "run"),
        *("--engine", f"http://127.0.0.1:{engine_port}", "--slots", str(slots)),
        *("--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}"),
        *("--gpu", "off" if gpu is None else "auto", "--log-format", "json"),
    ]
    post = ProcessSlot(part=ProcessRole.AGENT, target=engine, children=children, argv=argv, env=gpu or {})
    return AgentProcess(post=post, http=http, grpc=grpc)
