"""Agents of the lab's engines, one process each."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from chaos.faults.actions import ProcessRole
from chaos.lab.process_slot import ProcessSlot
from chaos.processes import ChildProcesses, free_ports


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProcess:
    """One agent. ``http`` is its port for probes and drain, ``grpc`` its report port."""

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

    ``gpu`` is the environment of the NVML double; without it the agent ignores GPUs.
    """
    # Fixed ports, so that a restarted agent is reachable at the same address.
    http, grpc = free_ports(2)
    argv = [
        *(sys.executable, "-m", "engine.agent", "run"),
        *("--engine", f"http://127.0.0.1:{engine_port}", "--slots", str(slots)),
        *("--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}"),
        *("--gpu", "off" if gpu is None else "auto", "--log-format", "json"),
    ]
    post = ProcessSlot(part=ProcessRole.AGENT, target=engine, children=children, argv=argv, env=gpu or {})
    return AgentProcess(post=post, http=http, grpc=grpc)
