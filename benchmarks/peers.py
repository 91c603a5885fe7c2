"""Routers of other projects before the engines, as real processes: SGLang's, vLLM's, and LiteLLM's proxy.

They have an environment of their own, ``make peers-env``; ``SWITCHGEAR_PEERS_PYTHON`` names the Python of
another. Each has what its documentation shows for failures. Where that leaves a number open, or names minutes
for a fault of seconds, it has the number of the hand-tuned Envoy: three tries, probes every second, 10 s out. A
try may take as long as callers wait: with that Envoy's 3 s, SGLang's router served 45 to 57 % instead of all in
quick runs of S1, S3 and S5, because tries that waited in full queues opened the breakers of healthy engines.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from chaos.processes import ChildProcess, ChildProcesses, free_ports

VARIABLE: Final = "SWITCHGEAR_PEERS_PYTHON"
TRIES: Final = 3
TRY_LIMIT_S: Final = 10
PROBE_S: Final = 1
OUT_S: Final = 10

_OWN: Final = Path(__file__).resolve().parents[1] / ".peers-venv" / "bin" / "python"


class PeersError(RuntimeError):
    """There is no environment with the peers; the message says what makes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSite:
    """What a peer needs to know: the engines it routes to, their model, its own ports, a folder for its files."""

    engines: Sequence[str]
    model: str
    port: int
    metrics_port: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A product that a user might choose. ``distribution`` is its package, ``arguments`` those of its Python.

    ``settings`` is what differs from its defaults, for people.
    """

    name: str
    title: str
    distribution: str
    settings: str
    arguments: Callable[[PeerSite], list[str]]
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def _router_arguments(site: PeerSite) -> list[str]:
    """SGLang's router and vLLM's, which is made from it, have the same flags."""
    return [
        *("--host", "127.0.0.1", "--port", str(site.port)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(site.metrics_port)),
        *("--worker-urls", *site.engines, "--worker-startup-check-interval", str(PROBE_S)),
        # By load: all prompts of a bench are alike, and the default follows prefixes.
        *("--policy", "power_of_two", "--log-level", "error"),
        *("--request-timeout-secs", str(TRY_LIMIT_S)),
        *("--retry-max-retries", str(TRIES), "--retry-initial-backoff-ms", "100"),
        *("--retry-max-backoff-ms", "10000", "--retry-backoff-multiplier", "2.0", "--retry-jitter-factor", "0.1"),
        *("--cb-failure-threshold", "5", "--cb-success-threshold", "2"),
        *("--cb-timeout-duration-secs", str(OUT_S), "--cb-window-duration-secs", "60"),
        *("--health-check-interval-secs", str(PROBE_S), "--health-check-timeout-secs", str(PROBE_S)),
        *("--health-failure-threshold", "2", "--health-success-threshold", "1"),
    ]


def _sglang(site: PeerSite) -> list[str]:
    return ["-m", "sglang_router.launch_router", *_router_arguments(site)]


def _vllm(site: PeerSite) -> list[str]:
    return ["-m", "vllm_router.launch_router", *_router_arguments(site)]


def _litellm(site: PeerSite) -> list[str]:
    path = site.folder / f"litellm-{site.port}.yaml"
    # JSON is YAML.
    path.write_text(json.dumps(litellm_config(site), indent=1))
    return [
        *("-m", "litellm.proxy.proxy_cli", "--config", str(path), "--host", "127.0.0.1", "--port", str(site.port)),
        *("--num_workers", "1"),
    ]


def litellm_config(site: PeerSite) -> dict[str, Any]:
    """The proxy's configuration: one model group with a deployment for each engine."""
    return {
        "model_list": [
            {
                "model_name": site.model,
                "litellm_params": {
                    "model": f"hosted_vllm/{site.model}",
                    "api_base": f"{engine}/v1",
                    "api_key": "none",
                },
            }
            for engine in site.engines
        ],
        "router_settings": {
            "routing_strategy": "simple-shuffle",
            "num_retries": TRIES - 1,
            "retry_after": 0,
            "timeout": TRY_LIMIT_S,
            "allowed_fails": 3,
            "cooldown_time": OUT_S,
        },
        # The ids by which engines' records are matched with requests.
        "general_settings": {"forward_client_headers_to_llm_api": True},
    }


_ROUTER_SETTINGS: Final = (
    f"`power_of_two`; {TRIES} tries of at most {TRY_LIMIT_S} s, 100 ms apart, then twice that; out for "
    f"{OUT_S} s after 5 failures, back after 2 successes; `/health` every {PROBE_S} s, out after 2 failures, "
    "back after 1 success"
)

PEERS: Final[Mapping[str, Peer]] = MappingProxyType(
    {
        one.name: one
        for one in (
            Peer(
                name="sglang-router",
                title="SGLang's router",
                distribution="sglang-router",
                settings=_ROUTER_SETTINGS,
                arguments=_sglang,
            ),
            Peer(
                name="vllm-router",
                title="vLLM's router",
                distribution="vllm-router",
                settings=_ROUTER_SETTINGS,
                arguments=_vllm,
            ),
            Peer(
                name="litellm",
                title="LiteLLM's proxy",
                distribution="litellm",
                settings=f"`simple-shuffle`, one worker; {TRIES} tries of at most {TRY_LIMIT_S} s, at once; out "
                f"for {OUT_S} s after 3 failures; no keys, no database, no probes",
                arguments=_litellm,
                environment=MappingProxyType(
                    {
                        # Its table of prices, which it otherwise fetches.
                        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                        "LITELLM_LOG": "ERROR",
                        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
                    }
                ),
            ),
        )
    }
)


def peers_python() -> Path | None:
    """The Python of the environment with the peers; None without one."""
    named = os.environ.get(VARIABLE)
    found = Path(named) if named else _OWN
    return found if found.is_file() else None


def peer_version(peer: Peer) -> str | None:
    """The version that is installed; None without it."""
    python = peers_python()
    if python is None:
        return None
    code = f"import importlib.metadata as m; print(m.version({peer.distribution!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


async def start_peer(
    children: ChildProcesses, folder: Path, peer: Peer, engine_ports: Sequence[int], model: str
) -> tuple[ChildProcess, str]:
    """Start a peer; its process, and where it will take requests. No ready line: wait for its answers."""
    python = peers_python()
    if python is None:
        raise PeersError(f"no environment with {peer.title}: `make peers-env` makes one")
    port, metrics_port = free_ports(2)
    site = PeerSite(
        engines=[f"http://127.0.0.1:{one}" for one in engine_ports],
        model=model,
        port=port,
        metrics_port=metrics_port,
        folder=folder,
    )
    child = await children.start(
        f"{peer.name}-{port}", [str(python), *peer.arguments(site)], env=dict(peer.environment)
    )
    return child, f"http://127.0.0.1:{port}"
