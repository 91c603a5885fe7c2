"""The double in trouble, as the connection of the control plane sees it."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import aiohttp
import pytest

from tests.cluster import NAMESPACES, Cluster, double_process
from tests.cluster_double import Troubles
from tests.cluster_double.asking import Request
from tests.cluster_double.troubles import troubles
from tests.eventually import eventually
from tests.kubernetes.conftest import watching
from xds_server.k8s.api_resources import ENGINE_POOLS, PODS
from xds_server.k8s.client_config import ClientConfig, open_kube_api
from xds_server.k8s.kube_api import ApiError, ObjectSelector

ALL_PODS = ObjectSelector(resource=PODS)
SPACES = ObjectSelector(resource=NAMESPACES)


async def test_compacted_resource_version_is_410_gone(cluster: Cluster) -> None:
    double = cluster.must_be_double("it forgets versions on order")
    page = await cluster.api.page(SPACES, limit=1)
    await cluster.namespace("one")
    double.expire()
    with pytest.raises(ApiError) as listing:
        await cluster.api.page(SPACES, limit=1, more=page.more)
    assert listing.value.expired
    async with watching(cluster, SPACES, since=page.resource_version) as events:
        with pytest.raises(ApiError) as watched:
            await events.next()
    assert watched.value.expired
    async with watching(cluster, SPACES) as events:
        await cluster.namespace("two")
        assert await events.name() == ("ADDED", "two")


async def test_bookmark_carries_the_resource_version_of_a_watch(cluster: Cluster) -> None:
    double = cluster.must_be_double("it sends bookmarks on order")
    async with watching(cluster, ALL_PODS) as events:
        told = asyncio.ensure_future(events.bookmark())
        await eventually(lambda: double.watches == 1, "the watch is open", 60)
        await cluster.namespace("one")  # nothing that is watched
        version = (await cluster.api.page(SPACES)).resource_version
        double.bookmark()
        assert await told == version


async def test_connection_reset_ends_watches(cluster: Cluster) -> None:
    double = cluster.must_be_double("it resets connections on order")
    version = (await cluster.api.page(ALL_PODS)).resource_version
    async with aclosing(cluster.api.watch(ALL_PODS, version, timeout_s=100)) as stream:  # type: ignore[type-var]
        asked = asyncio.ensure_future(anext(stream))
        await eventually(lambda: double.watches == 1, "the watch is open", 60)
        double.reset_watches()
        with pytest.raises(ApiError) as caught:
            await asked
    assert caught.value.status == 0
    await eventually(lambda: double.watches == 0, "the watch is gone", 60)
    assert await cluster.api.page(ALL_PODS)


async def test_unresponsive_api_server_answers_after_the_fault(cluster: Cluster) -> None:
    double = cluster.must_be_double("it stops answering for one path")
    double.trouble(Troubles(silent=True, only="/pods"))
    asked = asyncio.ensure_future(cluster.api.page(ALL_PODS))
    assert await cluster.api.page(SPACES)  # another path
    assert not asked.done()
    double.trouble(Troubles())
    assert (await asked).items == ()


async def test_unresponsive_api_server_delivers_watch_events_afterwards(cluster: Cluster) -> None:
    double = cluster.must_be_double("it takes a write while it answers none")
    async with watching(cluster, SPACES) as events:
        first = asyncio.ensure_future(events.name())
        await eventually(lambda: double.watches == 1, "the watch is open", 60)
        double.trouble(Troubles(silent=True))
        # Written directly, past the fault: it exists, and no watch reports it.
        heading = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "one"}}
        double.ask(Request(method="POST", path="/api/v1/namespaces", body=json.dumps(heading).encode()))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not first.done()
        double.trouble(Troubles())
        assert await first == ("ADDED", "one")


async def test_rate_limited_requests_get_429(cluster: Cluster) -> None:
    double = cluster.must_be_double("it answers 429 and 500 on order")
    double.trouble(Troubles(too_many=2))
    for _ in range(2):
        with pytest.raises(ApiError) as caught:
            await cluster.api.page(ALL_PODS)
        assert (caught.value.status, caught.value.retry_after_s) == (429, 1.0)
    assert await cluster.api.page(ALL_PODS)
    double.trouble(Troubles(failing=1))
    with pytest.raises(ApiError) as caught:
        await cluster.api.page(ALL_PODS)
    assert caught.value.status == 500
    assert await cluster.api.page(ALL_PODS)


async def test_pod_is_deleted_after_its_grace_period(cluster: Cluster) -> None:
    cluster.must_be_double("it ends pods as a kubelet does")
    await cluster.node("n")
    await cluster.pod("p", node="n", terminationGracePeriodSeconds=1)
    async with watching(cluster, ALL_PODS) as events:
        await cluster.api.delete(PODS, "default", "p")
        assert await events.name() == ("MODIFIED", "p")
        assert await events.name() == ("DELETED", "p")


async def test_process_says_what_it_is_and_takes_orders(tmp_path: Path) -> None:
    async with double_process(tmp_path) as ready:
        assert ready["double"] is True
        async with (
            open_kube_api(ClientConfig(kubeconfig=Path(ready["kubeconfig"]))) as api,
            aiohttp.ClientSession() as session,
        ):
            assert "not Kubernetes" in str((await api.get_raw("/version"))["platform"])
            assert (await api.page(ObjectSelector(resource=ENGINE_POOLS))).items == ()
            control = ready["control"]
            async with session.post(f"{control}/troubles", data=json.dumps({"too_many": 1})) as answer:
                assert answer.status == 200
            with pytest.raises(ApiError) as caught:
                await api.page(ALL_PODS)
            assert caught.value.status == 429
            async with session.post(f"{control}/troubles", data=json.dumps({"angry": True})) as answer:
                assert answer.status == 400
            for order in ("reset-watches", "expire", "bookmark"):
                async with session.post(f"{control}/{order}") as answer:
                    assert answer.status == 200
            async with session.post(f"{control}/explode") as answer:
                assert answer.status == 404


@pytest.mark.parametrize("said", [{"slow": 1}, {"silent": 1}, {"too_many": True}, {"delay_s": -1}, {"only": None}])
def test_unknown_fault_fields_are_refused(said: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(said))):
        troubles(said)
