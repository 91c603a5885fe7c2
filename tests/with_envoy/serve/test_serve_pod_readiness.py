"""What a cluster says of its pods reaches a real Envoy: not ready, tainted, deleted, back; and when it is silent.

Pods are fake engines at addresses of their own on this machine.
"""

from collections.abc import Sequence

import pytest

from chaos.fake_engine import EngineConfig, FakeEngine
from chaos.processes import free_ports
from tests.cluster import SERVICES, Cluster
from tests.with_envoy.serve.conftest import Site, document, eventually
from xds_server.k8s.api_resources import ENGINE_POOLS, NODES, PODS
from xds_server.k8s.kube_api import ApiError

pytestmark = pytest.mark.envoy

APP = {"app": "chat"}


async def pods(site: Site, cluster: Cluster, count: int) -> None:
    """``count`` engines, each a pod on its own node, behind one Service, and policies that name it."""
    await cluster.define()
    (port,) = free_ports(1)
    for number in range(count):
        engine = FakeEngine(EngineConfig(name=f"chat-{number}", host=f"127.0.0.{number + 2}", port=port))
        await engine.start()
        site.engines.append(engine)
        await cluster.node(f"gpu-{number}", zone="z1")
        await cluster.pod(
            engine.config.name,
            labels=APP,
            node=f"gpu-{number}",
            ip=engine.config.host,
            ports={"http": port},
            terminationGracePeriodSeconds=600,
        )
    await cluster.service("chat", selector=APP, ports={"http": "http"})
    found = {"service": "chat", "port": "http"}
    pool = document(
        "EnginePool", "chat", {"model": "fake-model", "kubernetes": found, "probe": {"interval": "200ms"}}
    )
    await cluster.put(pool)
    await cluster.put(site.route())


async def says(site: Site, *arguments: str) -> str:
    _, out, error = await site.switchgear(*arguments, "--admin", f"http://{site.admin}")
    return " ".join((out + error).split())


async def served_by(site: Site, engines: Sequence[str]) -> None:
    """Return when requests are answered by these engines, all of them and no others, and none fails."""

    async def so() -> bool:
        answers = [await site.ask() for _ in range(5 * len(engines))]
        assert {status for status, _ in answers} == {200}
        return {engine for _, engine in answers} == set(engines)

    await eventually(so, f"answers of {', '.join(engines)}")


async def test_pod_readiness_taint_and_deletion_move_traffic(site: Site, cluster: Cluster) -> None:
    await pods(site, cluster, 4)
    everyone = [f"chat-{number}" for number in range(4)]
    server = await site.serve(source=("--kubernetes", "--kubeconfig", str(cluster.kubeconfig)))
    await site.envoy()
    await served_by(site, everyone)
    zero, one, two, three = site.engines

    # Not ready: ejected; ready: back at once. Its reports stay healthy throughout.
    await cluster.condition("chat-1", "Ready", held=False)
    await site.becomes(one, "UNHEALTHY")
    await served_by(site, ["chat-0", "chat-2", "chat-3"])
    assert "pod chat-1 is not ready" in await says(site, "why", "chat-1")
    (shown,) = [engine for engine in (await site.get("/v1/engines"))["engines"] if engine["engine"] == "chat-1"]
    assert (shown["standing"], shown["ejector"]) == ("not-ready", "orchestrator")
    await cluster.condition("chat-1", "Ready", held=True)
    await served_by(site, everyone)

    # A tainted node drains its engine.
    taint = {"key": "nvidia.com/gpu-error", "effect": "NoSchedule"}
    await cluster.api.merge(NODES, "", "gpu-2", {"spec": {"taints": [taint]}})
    await site.becomes(two, "DRAINING")
    why = (await site.get("/v1/why?name=chat-2"))["now"]
    assert "because node gpu-2 has taint nvidia.com/gpu-error" in why
    await cluster.api.merge(NODES, "", "gpu-2", {"spec": {"taints": None}})
    await site.becomes(two, "HEALTHY")

    # The only replica writes its decisions to the cluster.
    async def told() -> bool:
        status = (await cluster.api.get(ENGINE_POOLS, "default", "chat")).get("status") or {}
        held = {one["type"]: one["status"] for one in status.get("conditions", ())}
        return held.get("Accepted") == held.get("Programmed") == "True"

    await eventually(told, "the pool's status")

    # A selector that matches no pod is held back: the pods exist, so they stay served.
    await cluster.api.merge(SERVICES, "default", "chat", {"spec": {"selector": {"app": "chta"}}})

    async def held() -> bool:
        return (await site.get("/v1/policies"))["state"] == "held"

    await eventually(held, "the empty pool is held back")
    await served_by(site, everyone)
    await cluster.api.merge(SERVICES, "default", "chat", {"spec": {"selector": APP}})

    async def accepted() -> bool:
        return (await site.get("/v1/policies"))["state"] == "accepted"

    await eventually(accepted, "the pool as it was")

    # Scaled down to one: each pod drains while it is being deleted, then it is no longer known; nothing is held.
    leaving = ("chat-1", "chat-2", "chat-3")
    for name in leaving:
        await cluster.api.delete(PODS, "default", name)
    await site.becomes(three, "DRAINING")
    await served_by(site, ["chat-0"])
    for name in leaving:
        path = f"/api/v1/namespaces/default/pods/{name}"
        assert (await cluster.ask("DELETE", path, {"gracePeriodSeconds": 0}))[0] == 200

    async def gone() -> bool:
        known = [engine["engine"] for engine in (await site.get("/v1/engines"))["engines"]]
        return known == ["chat-0"]

    await eventually(gone, "deleted pods are removed from the engines")
    assert (await site.get("/v1/policies"))["state"] == "accepted"
    assert [entry for entry in site.logged(server, "engine.health") if "is being deleted" in entry["reason"]]

    # An API server that is gone costs news and no request.
    await cluster.down()

    async def lost() -> bool:
        return bool((await site.get("/v1/policies"))["lost_s"])

    await eventually(lost, "the API is known to be lost")
    status = await says(site, "status")
    assert "warning SG202 policies: the Kubernetes API does not answer for" in status
    assert "serving the last known state" in status
    assert (await site.get("/readyz"))["ready"]
    assert await site.metric("switchgear_source_stale_seconds") > 0

    async def on_record() -> bool:
        events = (await site.get("/v1/events"))["events"]
        told = [one["after"] for one in events if one["kind"] == "source"]
        return bool(told) and told[-1].startswith("lost: ")

    await eventually(on_record, "the loss is an event")
    await served_by(site, ["chat-0"])
    assert await site.health(zero) == "HEALTHY"
    await cluster.up()

    async def in_touch() -> bool:
        return (await site.get("/v1/policies"))["lost_s"] == {}

    await eventually(in_touch, "the API answers again")
    assert await site.stop(server) == 0


async def test_without_api_server_the_last_good_snapshot_is_served(site: Site, cluster: Cluster) -> None:
    await pods(site, cluster, 1)
    source = ("--kubernetes", "--kubeconfig", str(cluster.kubeconfig))
    first = await site.serve(source=source)
    assert await site.stop(first) == 0
    await cluster.down()
    with pytest.raises(ApiError):
        await cluster.api.get(ENGINE_POOLS, "default", "chat")

    second = await site.serve(source=source)
    policies = await site.get("/v1/policies")
    assert (policies["state"], policies["stale"], policies["pools"]) == ("unreached", True, ["chat"])
    await cluster.up()

    async def read() -> bool:
        policies = await site.get("/v1/policies")
        return policies["state"] == "accepted" and not policies["stale"]

    await eventually(read, "the cluster is read")
    assert await site.stop(second) == 0
