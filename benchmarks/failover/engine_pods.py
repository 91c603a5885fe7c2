"""Engines as pods of an API server, whose readiness follows ``/health`` as a kubelet would have it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from xds_server.k8s.api_resources import PODS
from xds_server.k8s.client_config import ClientConfig, open_kube_api
from xds_server.k8s.kube_api import KubeApi

NAMESPACE: Final = "default"
LABELS: Final[Mapping[str, str]] = {"app": "engine"}
PROBE_S: Final = 1.0
"""Period and timeout; one failure or success is enough: as in the example deployment of the picker's project."""


@dataclass(kw_only=True)
class EnginePods:
    """``addresses`` are those of the engines, which all have this ``port``. ``made`` is set once all are ready."""

    kubeconfig: Path
    addresses: Sequence[str]
    port: int
    made: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Make a pod for each engine, then probe them until cancelled."""
        async with open_kube_api(ClientConfig(kubeconfig=self.kubeconfig)) as api, asyncio.TaskGroup() as group:
            for number in range(len(self.addresses)):
                await self._create(api, number)
            self.made.set()
            for number in range(len(self.addresses)):
                group.create_task(self._probe(session, api, number))

    async def _create(self, api: KubeApi, number: int) -> None:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": _name(number), "labels": dict(LABELS)},
            "spec": {"containers": [{"name": "engine", "image": "engine"}]},
        }
        await api.create(PODS, NAMESPACE, pod)
        address = self.addresses[number]
        await self._say(api, number, phase="Running", podIP=address, podIPs=[{"ip": address}])
        await self._say(api, number, conditions=[_ready(held=True)])

    async def _probe(self, session: aiohttp.ClientSession, api: KubeApi, number: int) -> None:
        said, url = True, f"http://{self.addresses[number]}:{self.port}/health"
        while True:
            await asyncio.sleep(PROBE_S)
            try:
                async with session.get(url, timeout=aiohttp.ClientTimeout(total=PROBE_S)) as answer:
                    well = answer.status == 200
            except (aiohttp.ClientError, TimeoutError):
                well = False
            if well is not said:
                await self._say(api, number, conditions=[_ready(held=well)])
                said = well

    @staticmethod
    async def _say(api: KubeApi, number: int, **status: object) -> None:
        await api.strategic(PODS, NAMESPACE, _name(number), {"status": status}, subresource="status")


def _name(number: int) -> str:
    return f"engine-{number}"


def _ready(*, held: bool) -> Mapping[str, str]:
    return {"type": "Ready", "status": "True" if held else "False"}
