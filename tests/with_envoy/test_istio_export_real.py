"""Exports judged by Istio's own istioctl, and served by its istiod to a real Envoy."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from chaos.processes import ChildProcesses, free_ports
from istio.export.istio_export import export_to_istio
from istio.export.istio_objects import IstioTarget, Object
from policies.load import load, load_contents
from tests.cluster import Cluster
from tests.istio.real_istiod import (
    apply,
    gateway_bootstrap,
    said_by_istioctl,
    sidecar_bootstrap,
    start_istiod,
    write_definitions,
)
from tests.mesh_parts import ISTIOCTL, ISTIOD, required
from tests.with_envoy.conftest import EnvoyProcess, StartEnvoy
from tests.with_envoy.translate.recording_engine import Hearing

pytestmark = pytest.mark.envoy

ROOT = Path(__file__).parents[2]
PATHS = [
    *sorted((ROOT / "policies" / "examples").glob("*.yaml")),
    *sorted((ROOT / "tests" / "golden").glob("*/policy.yaml")),
]
PLACES = {
    "mesh": IstioTarget(),
    "gateway": IstioTarget(gateway="ingress/public", proxies=3),
    "host": IstioTarget(namespace="llm", host="models.example.com", filter_namespace="llm", telemetry=False),
    "live": IstioTarget(live=True),
}
FAULT = {"delay": {"fixedDelay": "2s", "percentage": {"value": 5.0}}}


def gateway_at(port: int) -> Object:
    """The Gateway that exports are for."""
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "public", "namespace": "ingress"},
        "spec": {
            "selector": {"istio": "ingress"},
            "servers": [{"port": {"number": port, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}],
        },
    }


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_istioctl_has_nothing_against_the_objects(path: Path, place: IstioTarget, tmp_path: Path) -> None:
    policies = load([path])
    objects = [*export_to_istio(policies, place, dict.fromkeys(policies.routes, FAULT)).objects]
    said = list(said_by_istioctl([*objects, *([gateway_at(80)] if place.gateway else [])], tmp_path))
    if place.gateway:
        # It expects a path; a gateway's authority is in the Secret of credentialName.
        said = [one for one in said if not one.startswith("IST0128 DestinationRule")]
    assert said == []


def test_what_istioctl_refuses_is_seen(tmp_path: Path) -> None:
    objects = export_to_istio(load([PATHS[0]]), IstioTarget()).objects
    (rule, *_) = (one for one in objects if one["kind"] == "DestinationRule")
    broken = {**rule, "spec": {"host": "x", "trafficPolicy": {"outlierDetection": {"interval": "1us"}}}}
    assert any("duration must be greater than 1ms" in one for one in said_by_istioctl([broken], tmp_path))


POLICY = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: chat}}
spec:
  model: llama
  endpoints:
    - {{name: failing, address: 127.0.0.2, port: {failing}}}
    - {{name: shedding, address: 127.0.0.3, port: {shedding}}}
    - {{name: serving, address: 127.0.0.4, port: {serving}}}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: front}}
spec: {{listener: {{port: {listener}}}, match: {{pathPrefix: /v1/}}, pools: [{{pool: chat}}]}}
---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {{name: default}}
spec:
  breaker: {{consecutiveErrors: 3, errorRatePercent: 0, localEjection: 10m, capacityFloorPercent: 0}}
  retries: {{attempts: 0}}
"""


@pytest.fixture
async def engines() -> AsyncIterator[Sequence[Hearing]]:
    """One that fails, one that sheds load, one that serves."""
    found = (Hearing(status=500), Hearing(status=503), Hearing())
    runners = [await one.listen(f"127.0.0.{number}") for number, one in enumerate(found, 2)]
    yield found
    for runner in runners:
        await runner.cleanup()


async def ejected(envoy: EnvoyProcess) -> set[str]:
    statuses = (await envoy.json("/clusters?format=json"))["cluster_statuses"]
    hosts = [host for one in statuses if "|chat." in one["name"] for host in one.get("host_statuses", ())]
    return {
        host["address"]["socket_address"]["address"]
        for host in hosts
        if host["health_status"].get("failed_outlier_check")
    }


@pytest.mark.parametrize("gateway", ["", "ingress/public"], ids=["sidecar", "gateway"])
async def test_envoy_behind_istiod_ejects_what_fails_and_keeps_what_sheds(
    cluster: Cluster, start_envoy: StartEnvoy, engines: Sequence[Hearing], tmp_path: Path, gateway: str
) -> None:
    required(ISTIOD)
    required(ISTIOCTL)
    if cluster.real is None:
        pytest.skip("no real API server: `make cluster-parts` builds it, or KUBE_APISERVER and ETCD name one")
    (port,) = free_ports(1)
    failing, shedding, serving = engines
    text = POLICY.format(failing=failing.port, shedding=shedding.port, serving=serving.port, listener=port)
    policies = load_contents({Path("policy.yaml"): text.encode()})
    write_definitions(tmp_path / "definitions.yaml")
    await cluster.define(tmp_path / "definitions.yaml")
    for namespace in ("istio-system", "ingress", "llm"):
        await cluster.namespace(namespace)
    # A plain Envoy lacks the filter of Istio's metrics.
    target = IstioTarget(namespace="llm", telemetry=False, gateway=gateway)
    await apply(cluster, [*export_to_istio(policies, target).objects, *([gateway_at(port)] if gateway else [])])
    async with ChildProcesses(log_dir=tmp_path / "logs") as processes:
        istiod_port = await start_istiod(processes, cluster.kubeconfig, tmp_path)
        envoy = await start_envoy(
            gateway_bootstrap(istiod_port, "ingress", {"istio": "ingress"})
            if gateway
            else sidecar_bootstrap(istiod_port, "llm")
        )
        headers = {"Host": f"models-{port}.llm.svc.cluster.local"}
        async with aiohttp.ClientSession() as client:

            async def status(path: str = "/v1/completions") -> int:
                url = f"http://127.0.0.1:{port}{path}"
                async with client.post(url, json={"model": "llama"}, headers=headers) as answer:
                    return answer.status

            async def listens() -> bool:
                try:
                    return await status() > 0
                except aiohttp.ClientConnectionError:
                    return False

            async def out() -> bool:
                await status()
                return len(shedding.seen) >= 20 and len(serving.seen) >= 20 and bool(await ejected(envoy))

            await envoy.wait_for(listens, "listening where istiod says")
            await envoy.wait_for(out, "ejecting the engine that fails")
            assert await ejected(envoy) == {"127.0.0.2"}
            assert await status("/other") == 404
            heard = len(failing.seen)
            assert {await status() for _ in range(30)} == {200, 503}
            assert len(failing.seen) == heard
