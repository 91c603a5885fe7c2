"""Other engines of a cluster while something is measured: a thousand pods, and changes of their EndpointSlices."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, NoReturn

from xds_server.k8s.api_resources import ENDPOINT_SLICES, ENGINE_POOLS, NODES, PODS
from xds_server.k8s.kube_api import KubeApi

ENDPOINTS_OF_SLICE: Final = 100
"""As the controller of a cluster makes them."""

_OTHERS: Final = "others"
_PORT: Final = 9
_WRITERS: Final = 8
_ADDRESSES: Final = "198.18.255.1/16"
"""Reserved for benchmarks (RFC 2544). An API server does not start without such an address and a default route."""

_APART: Final = "SWITCHGEAR_BENCH_APART"


class OtherPods:
    """Pods of a pool that no route names. Nothing listens at their addresses."""

    def __init__(self, api: KubeApi, pods: int) -> None:
        self.updates = 0
        self._api = api
        self._ready = [True] * pods

    async def fill(self) -> None:
        """Make the pods, their node, their EndpointSlices and their pool."""
        api = self._api
        await api.create(NODES, "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _OTHERS}})
        numbers = iter(range(len(self._ready)))
        await asyncio.gather(*(self._make_pods(numbers) for _ in range(_WRITERS)))
        for number in range(self._slices):
            await api.create(
                ENDPOINT_SLICES,
                "default",
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {"name": f"{_OTHERS}-{number}", "labels": {"kubernetes.io/service-name": _OTHERS}},
                    "addressType": "IPv4",
                    "ports": [{"name": "http", "port": _PORT}],
                    "endpoints": self._endpoints(number),
                },
            )
        await api.create(
            ENGINE_POOLS,
            "default",
            {
                "apiVersion": "switchgear.dev/v1alpha1",
                "kind": "EnginePool",
                "metadata": {"name": _OTHERS},
                "spec": {"model": _OTHERS, "kubernetes": {"service": _OTHERS, "port": "http"}},
            },
        )

    @asynccontextmanager
    async def changing(self, per_s: float) -> AsyncIterator[None]:
        """Meanwhile one endpoint after another becomes unready, or ready again: this many a second, if it can."""
        task = asyncio.create_task(self._change(per_s))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _change(self, per_s: float) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for number in count():
            await asyncio.sleep(max(0.0, began_s + number / per_s - loop.time()))
            # A prime step, so that neighbours in time are not neighbours in a slice.
            one = number * 7919 % len(self._ready)
            self._ready[one] = not self._ready[one]
            changed = one // ENDPOINTS_OF_SLICE
            await self._api.merge(
                ENDPOINT_SLICES, "default", f"{_OTHERS}-{changed}", {"endpoints": self._endpoints(changed)}
            )
            self.updates += 1

    @property
    def _slices(self) -> int:
        return -(-len(self._ready) // ENDPOINTS_OF_SLICE)

    async def _make_pods(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            name = f"{_OTHERS}-{number}"
            container = {"name": "engine", "image": "engine", "ports": [{"name": "http", "containerPort": _PORT}]}
            await self._api.create(
                PODS,
                "default",
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": name, "labels": {"app": _OTHERS}},
                    "spec": {"nodeName": _OTHERS, "containers": [container]},
                },
            )
            status = {"podIP": _address(number), "conditions": [{"type": "Ready", "status": "True"}]}
            await self._api.strategic(PODS, "default", name, {"status": status}, subresource="status")

    def _endpoints(self, number: int) -> list[dict[str, Any]]:
        first = number * ENDPOINTS_OF_SLICE
        return [
            {
                "addresses": [_address(one)],
                "conditions": {"ready": ready},
                "nodeName": _OTHERS,
                "targetRef": {"kind": "Pod", "namespace": "default", "name": f"{_OTHERS}-{one}"},
            }
            for one, ready in enumerate(self._ready[first : first + ENDPOINTS_OF_SLICE], start=first)
        ]


def _address(number: int) -> str:
    return f"198.18.{number // 250}.{number % 250 + 1}"


def apart(arguments: Sequence[str]) -> NoReturn:
    """Run the benchmark again where their addresses are local: an API server takes no loopback ones."""
    network = (
        f'ip link set lo up && ip address add {_ADDRESSES} dev lo && ip route add default dev lo && exec "$@"'
    )
    command = ["unshare", "--map-root-user", "--net", "sh", "-c", network, "sh"]
    os.execvpe("unshare", [*command, sys.executable, "-m", *arguments], {**os.environ, _APART: "1"})


def is_apart() -> bool:
    """Whether this process is in such a namespace."""
    return _APART in os.environ
