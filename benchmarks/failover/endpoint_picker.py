"""The Gateway API's endpoint picker as a process, set up as its chart does it, and the API server it reads."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from chaos.processes import ChildProcess, ChildProcesses, free_ports
from tests.api_server import ApiServer
from tests.cluster_parts import Parts, existing, from_environment, parts_in
from tests.go_build import PartsError
from tests.mesh_parts import ENDPOINT_PICKER, built_version

CHART_SCORERS: Final[Mapping[str, int]] = MappingProxyType(
    {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3}
)
"""With their weights, as in the picker's chart."""

LOAD_SCORERS: Final[Mapping[str, int]] = MappingProxyType(
    {name: weight for name, weight in CHART_SCORERS.items() if name != "prefix-cache-scorer"}
)
"""The bench's prompts are alike: with prefixes, one engine would get all requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerPrograms:
    """What the contestant needs."""

    picker: Path
    cluster: Parts


def programs() -> PickerPrograms:
    """The programs that are built; ``PartsError`` with what builds the one that is missing."""
    picker = ENDPOINT_PICKER.found()
    if picker is None:
        raise PartsError(f"no {ENDPOINT_PICKER.program}: `make {ENDPOINT_PICKER.target}` builds it")
    cluster = from_environment() or parts_in(existing("newest"))
    # Pods have no need of controllers.
    return PickerPrograms(picker=picker, cluster=replace(cluster, controllers=None))


def picker_version() -> str:
    """Of the program."""
    return built_version(ENDPOINT_PICKER, programs().picker)


async def start_api_server(children: ChildProcesses, folder: Path) -> ApiServer:
    """An API server with nothing in it."""
    await asyncio.to_thread(folder.mkdir)
    server = ApiServer(programs().cluster, folder, children)
    await server.start_all()
    return server


async def start_picker(
    children: ChildProcesses,
    kubeconfig: Path,
    labels: Sequence[str],
    engine_port: int,
    scorers: Mapping[str, int] = CHART_SCORERS,
) -> tuple[ChildProcess, int]:
    """The process and the port that Envoy asks; wait for Envoy's answers, it announces nothing.

    ``labels``: KEY=VALUE of the pods.
    """
    grpc, health, metrics = free_ports(3)
    argv = [
        str(programs().picker),
        *("--endpoint-selector", ",".join(labels), "--endpoint-target-ports", str(engine_port)),
        *("--grpc-port", str(grpc), "--grpc-health-port", str(health), "--metrics-port", str(metrics)),
        *("--kv-cache-usage-percentage-metric", "vllm:kv_cache_usage_perc", "--config-text", _plugins(scorers)),
        *("--secure-serving=false", "--metrics-endpoint-auth=false", "--enable-pprof=false"),
        *("--tracing=false", "--pool-namespace", "default", "--v", "1"),
    ]
    env = {"KUBECONFIG": str(kubeconfig), "POD_NAME": "epp-5d8f9c7b6d-x2x2x"}
    return await children.start("endpoint-picker", argv, env=env), grpc


def _plugins(scorers: Mapping[str, int]) -> str:
    """Its configuration; JSON is YAML."""
    profile = {
        "name": "default",
        "plugins": [{"pluginRef": name, "weight": weight} for name, weight in scorers.items()],
    }
    said = {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [{"type": name} for name in scorers],
        "schedulingProfiles": [profile],
    }
    return json.dumps(said)
