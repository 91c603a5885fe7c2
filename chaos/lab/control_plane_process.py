"""The lab's control plane, and the relays between it, the agents, the engines and the proxies."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chaos.faults.actions import ProcessRole
from chaos.lab.process_slot import START_LIMIT_S, ProcessSlot
from chaos.processes import ChildProcess, ChildProcesses, free_ports
from chaos.scenario.experiment_plan import CONTROL_PLANE

POLICY_FILE = "lab.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneProcess:
    """Its xDS and admin ports, its policy file and its ledger."""

    post: ProcessSlot
    xds_port: int
    admin: str
    policies: Path
    ledger: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TapProcess:
    """A relay process: its control URL, and its ports by link name."""

    child: ChildProcess
    control: str
    ports: Mapping[str, int]


async def start_control_plane(
    children: ChildProcesses, folder: Path, text: str, *, name: str = POLICY_FILE
) -> ControlPlaneProcess:
    """Serve this policy text from a file of this name.

    After a kill it restarts on the same ports; its state on disk is the ledger.
    """
    xds, admin = free_ports(2)
    policies = folder / "policies"
    policies.mkdir()
    file = policies / name
    file.write_text(text, encoding="utf-8")
    state, ledger = folder / "state", folder / "ledger.jsonl"
    post = ProcessSlot(
        part=ProcessRole.CONTROL_PLANE,
        target=CONTROL_PLANE,
        children=children,
        argv=[
            *(sys.executable, "-m", "xds_server", "serve", "-f", str(policies)),
            *("--listen", f"127.0.0.1:{xds}", "--admin", f"127.0.0.1:{admin}"),
            *("--state-dir", str(state), "--ledger", str(ledger)),
        ],
        kept=(state, ledger),
    )
    await post.start()
    return ControlPlaneProcess(
        post=post, xds_port=xds, admin=f"http://127.0.0.1:{admin}", policies=file, ledger=ledger
    )


async def start_tap(children: ChildProcesses, name: str, module: str, links: Mapping[str, int]) -> TapProcess:
    """Start a relay for these ports of 127.0.0.1; see ``chaos.lab.lab_handles``."""
    argv = [sys.executable, "-m", module]
    for link, port in links.items():
        argv += ["--link", f"{link}=127.0.0.1:{port}"]
    child = await children.start(name, argv, ready_within_s=START_LIMIT_S)
    ports = {str(link): int(port) for link, port in child.ready["ports"].items()}
    return TapProcess(child=child, control=str(child.ready["control"]), ports=ports)
