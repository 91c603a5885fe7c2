"""What only a real API server does: it dies with its watch cache, loses its etcd, revokes tokens and rights.

Skipped where the double serves; it plays these faults on order, in ``tests/cluster_double`` and with the sources.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.api_server import ApiServer
from tests.cluster import NAMESPACES, Cluster
from tests.eventually import eventually
from tests.kubernetes.conftest import pool, watching
from xds_server.k8s.api_resources import ENGINE_POOLS, LEASES
from xds_server.k8s.client_config import ClientConfig, open_kube_api
from xds_server.k8s.kube_api import ApiError, KubeApi, ObjectSelector
from xds_server.k8s.lease import LeaderElector, LeaseTime
from xds_server.k8s.reflector import Reflector, ReflectorHandlers
from xds_server.k8s.watch_backoff import WatchBackoffPolicy, WatchState

LIMIT_S = 120.0
POOLS = ObjectSelector(resource=ENGINE_POOLS, namespace="default")
QUICK = WatchBackoffPolicy(first_s=0.02, most_s=0.2, slow_s=0.2)


@pytest.fixture
def real(cluster: Cluster) -> ApiServer:
    """The real API server; skips where there is none."""
    if cluster.real is None:
        pytest.skip("the double serves: `make cluster` runs this on a real API server")
    return cluster.real


@asynccontextmanager
async def reflecting(api: KubeApi) -> AsyncIterator[Reflector[int]]:
    """Pools of the namespace ``default``, each by its slots."""
    one = Reflector(
        api, POOLS, lambda found: int(found["spec"].get("slotsPerEngine", 0)), ReflectorHandlers(), backoff=QUICK
    )
    task = asyncio.create_task(one.run())
    try:
        await eventually(lambda: one.current, "the list", LIMIT_S)
        yield one
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def slots(one: Reflector[int]) -> dict[str, int]:
    return {name: number for (_, name), number in one.objects.items()}


async def write(api: KubeApi, name: str, number: int) -> None:
    await api.apply(ENGINE_POOLS, "default", name, pool(name, slotsPerEngine=number), manager="test")


async def test_watch_and_page_from_before_a_compaction_are_410(cluster: Cluster, real: ApiServer) -> None:
    spaces = ObjectSelector(resource=NAMESPACES)
    page = await cluster.api.page(spaces, limit=1)
    assert page.more
    await cluster.namespace("one")
    await real.down()
    await real.compact(await real.revision())
    # A new process has no watch cache of earlier versions.
    await real.up()
    with pytest.raises(ApiError) as listing:
        await cluster.api.page(spaces, limit=1, more=page.more)
    assert listing.value.expired
    with pytest.raises(ApiError) as watched:
        async with watching(cluster, spaces, since=page.resource_version) as events:
            await events.next()
    assert watched.value.expired


@pytest.mark.usefixtures("real")
async def test_bookmark_precedes_the_end_of_a_watch(cluster: Cluster) -> None:
    await cluster.define()
    await cluster.namespace("other")
    version = (await cluster.api.page(POOLS)).resource_version
    made: list[int] = []

    async def unwatched_writes() -> None:
        # Of the same kind: the server's cache moves on.
        while True:
            heading = {"name": f"a{len(made)}"}
            one = await cluster.api.create(ENGINE_POOLS, "other", {**pool("a"), "metadata": heading})
            made.append(int(one["metadata"]["resourceVersion"]))
            await asyncio.sleep(0.5)

    bookmarks = []
    writing = asyncio.create_task(unwatched_writes())
    async with aclosing(cluster.api.watch(POOLS, version, timeout_s=6)) as stream:  # type: ignore[type-var]
        async for event in stream:
            assert event.type == "BOOKMARK"
            bookmarks.append(int(event.object["metadata"]["resourceVersion"]))
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    assert bookmarks[-1] in made


async def test_objects_survive_a_killed_api_server(cluster: Cluster, real: ApiServer) -> None:
    await cluster.define()
    await write(cluster.api, "a", 1)
    await write(cluster.api, "b", 1)
    async with reflecting(cluster.api) as one:
        await real.down()
        await eventually(lambda: one.state is WatchState.LOST, "it is lost", LIMIT_S)
        assert slots(one) == {"a": 1, "b": 1}
        await real.up()
        await write(cluster.api, "a", 2)
        await eventually(lambda: slots(one) == {"a": 2, "b": 1}, "the change arrives", LIMIT_S)
        assert one.stale_s is None


async def test_changes_behind_its_back_arrive_in_one_list(cluster: Cluster, real: ApiServer) -> None:
    """Deleted and written while the server listened elsewhere, then compacted: only a new list can show it."""
    await cluster.define()
    for name in "abc":
        await write(cluster.api, name, 1)
    async with reflecting(cluster.api) as one:
        await real.down()
        await eventually(lambda: one.state is WatchState.LOST, "it is lost", LIMIT_S)
        async with real.elsewhere() as address, open_kube_api(ClientConfig(kubeconfig=address)) as api:
            await api.delete(ENGINE_POOLS, "default", "b")
            await write(api, "c", 2)
            await real.compact(await real.revision())
        assert slots(one) == {"a": 1, "b": 1, "c": 1}
        seen: list[dict[str, int]] = []
        await real.up()

        def listed() -> bool:
            seen.append(slots(one))
            return one.state is WatchState.SYNCED and slots(one) == {"a": 1, "c": 2}

        await eventually(listed, "the new list", LIMIT_S)
        assert all(state in ({"a": 1, "b": 1, "c": 1}, {"a": 1, "c": 2}) for state in seen)


async def test_stopped_etcd_refuses_writes_and_keeps_objects(cluster: Cluster, real: ApiServer) -> None:
    await cluster.define()
    await write(cluster.api, "a", 1)
    async with reflecting(cluster.api) as one:
        real.freeze_etcd()
        try:
            with pytest.raises(ApiError) as caught:
                await write(cluster.api, "a", 2)
            # No answer within the client's limit, or the server's own.
            assert caught.value.status in {0, 500, 503, 504}
            assert slots(one) == {"a": 1}
        finally:
            real.thaw_etcd()

        async def written() -> bool:
            with contextlib.suppress(ApiError):
                await write(cluster.api, "a", 3)
                return True
            return False

        await eventually(written, "writes are taken again", LIMIT_S)
        await eventually(lambda: slots(one) == {"a": 3}, "the change arrives", LIMIT_S)


async def test_frozen_api_server_times_out_and_continues(cluster: Cluster) -> None:
    await cluster.define()
    await write(cluster.api, "a", 1)
    async with reflecting(cluster.api) as one:
        cluster.freeze()
        try:
            with pytest.raises(ApiError) as caught:
                await write(cluster.api, "b", 1)
            assert caught.value.status == 0
            assert slots(one) == {"a": 1}
        finally:
            cluster.thaw()
        await eventually(lambda: "b" in slots(one) or one.current, "it is current", LIMIT_S)
        await write(cluster.api, "c", 1)
        await eventually(lambda: "c" in slots(one), "news", LIMIT_S)


async def test_rights_taken_away_and_given_back(cluster: Cluster, real: ApiServer, tmp_path: Path) -> None:
    await cluster.define()
    await write(cluster.api, "a", 1)
    await account(cluster, "reader")
    await bind(cluster, "reader")
    at = tmp_path / "reader"
    at.write_text(real.kubeconfig_text(await token(cluster, "reader")))
    async with open_kube_api(ClientConfig(kubeconfig=at)) as api, reflecting(api) as one:
        assert slots(one) == {"a": 1}
        await cluster.ask("DELETE", f"{RBAC}/rolebindings/reader")
        await eventually(partial(refuses, api, 403), "the right is gone", LIMIT_S)
        one.rewatch()
        await eventually(lambda: one.state is WatchState.FORBIDDEN, "the watch is refused", LIMIT_S)
        assert slots(one) == {"a": 1}
        await write(cluster.api, "a", 2)
        await bind(cluster, "reader")
        await eventually(lambda: slots(one) == {"a": 2}, "the right is back", LIMIT_S)


async def test_revoked_token_is_replaced_by_the_next_in_its_file(
    cluster: Cluster, real: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.define()
    await write(cluster.api, "a", 1)
    for name in ("first", "second"):
        await account(cluster, name)
        await bind(cluster, name)
    file = tmp_path / "token"
    file.write_text(await token(cluster, "first"))
    clock = in_pod(real, file, monkeypatch)
    async with open_kube_api(ClientConfig()) as api, reflecting(api) as one:
        await cluster.ask("DELETE", "/api/v1/namespaces/default/serviceaccounts/first")
        await eventually(partial(refuses, api, 401), "the token is void", LIMIT_S)
        one.rewatch()
        await eventually(lambda: one.state is WatchState.LOST, "the watch is refused", LIMIT_S)
        assert slots(one) == {"a": 1}
        file.write_text(await token(cluster, "second"))
        await write(cluster.api, "a", 2)
        clock.passed += timedelta(minutes=1)  # how often the client reads the file
        await eventually(lambda: slots(one) == {"a": 2}, "the next token is used", LIMIT_S)


async def test_throttled_client_keeps_its_objects_and_reads_when_to_ask_again(
    cluster: Cluster, real: ApiServer, tmp_path: Path
) -> None:
    await cluster.define()
    await write(cluster.api, "a", 1)
    await account(cluster, "reader")
    await bind(cluster, "reader")
    bearer = await token(cluster, "reader")
    # Without priority and fairness, which would queue them first.
    limits = ("--enable-priority-and-fairness=false", "--max-requests-inflight=1")
    async with real.elsewhere(*limits) as kubeconfig:
        at = tmp_path / "reader"
        at.write_text(kubeconfig.read_text().replace(real.token, bearer))
        async with open_kube_api(ClientConfig(kubeconfig=at)) as api, reflecting(api) as one:
            waiting: set[asyncio.Task[bool]] = set()

            async def throttled() -> ApiError | None:
                # Each occupies the server until etcd answers.
                waiting.add(asyncio.create_task(refuses(api, 0)))
                try:
                    await api.page(POOLS)
                except ApiError as error:
                    return error if error.status == 429 else None
                return None

            real.freeze_etcd()
            try:
                error = await eventually(throttled, "it is throttled", LIMIT_S)
                assert error.retry_after_s is not None
                one.rewatch()
                assert slots(one) == {"a": 1}
            finally:
                real.thaw_etcd()
                await asyncio.gather(*waiting)
            await write(cluster.api, "a", 2)
            await eventually(lambda: slots(one) == {"a": 2}, "the change arrives", LIMIT_S)


async def test_slow_api_server_changes_no_leader_and_loses_no_change(cluster: Cluster, real: ApiServer) -> None:
    await cluster.define()
    changes: list[bool] = []
    leader = elector(cluster.api, "one", on_change=lambda: changes.append(leader.holds()))
    other = elector(cluster.api, "two")
    renewals: set[str] = set()
    written = 0

    async def written_and_renewed() -> bool:
        nonlocal written
        written += 1
        await write(cluster.api, "a", written)
        renewals.add((await cluster.api.get(LEASES, "default", "writer"))["spec"]["renewTime"])
        assert not other.holds()
        return len(renewals) > 8

    async with reflecting(cluster.api) as one, electing(leader):
        await eventually(leader.holds, "the first leads", LIMIT_S)
        async with electing(other), slow_etcd(real):
            await eventually(written_and_renewed, "the leader renews", LIMIT_S)
            await eventually(lambda: slots(one) == {"a": written}, "the last change arrives", LIMIT_S)
        assert changes == [True]


async def test_replica_whose_clock_is_wrong_takes_no_lease_that_is_renewed(cluster: Cluster) -> None:
    one, ahead = elector(cluster.api, "one"), elector(cluster.api, "ahead", skew_s=3600.0)
    renewals: set[str] = set()

    async def renewed_often() -> bool:
        assert not ahead.holds()
        renewals.add((await cluster.api.get(LEASES, "default", "writer"))["spec"]["renewTime"])
        return len(renewals) > 5

    async with electing(one):
        await eventually(one.holds, "the first leads", LIMIT_S)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(electing(ahead))
            await eventually(renewed_often, "it renews", LIMIT_S)
            following = stack.pop_all()
    # It ended without a release, as if killed.
    async with following:
        await eventually(ahead.holds, "its Lease expires", LIMIT_S)
        async with electing(elector(cluster.api, "behind", skew_s=-3600.0)) as behind:
            await eventually(lambda: behind.holder.startswith("ahead"), "it sees the holder", LIMIT_S)
            assert not behind.holds()
    spec = (await cluster.api.get(LEASES, "default", "writer"))["spec"]
    assert datetime.fromisoformat(spec["renewTime"]).timestamp() > time.time() + 1800, "its clock is wrong"


RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"


def elector(api: KubeApi, name: str, *, skew_s: float = 0.0, **more: Any) -> LeaderElector:
    """A replica whose wall clock is wrong by so much."""

    def clock() -> LeaseTime:
        now = LeaseTime.now()
        return replace(now, unix_s=now.unix_s + skew_s)

    return LeaderElector(api, namespace="default", name="writer", identity=name, clock=clock, **more)


@asynccontextmanager
async def electing(one: LeaderElector) -> AsyncIterator[LeaderElector]:
    """A replica runs, and ends without a release."""
    task = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def slow_etcd(real: ApiServer) -> AsyncIterator[None]:
    """etcd stands still four fifths of the time."""

    async def stand_still() -> None:
        while True:
            real.freeze_etcd()
            await asyncio.sleep(0.4)
            real.thaw_etcd()
            await asyncio.sleep(0.1)

    task = asyncio.create_task(stand_still())
    try:
        yield
    finally:
        task.cancel()
        real.thaw_etcd()


async def refuses(api: KubeApi, status: int) -> bool:
    """Whether the server answers this client with an HTTP status that refuses it."""
    try:
        await api.page(POOLS)
    except ApiError as error:
        return error.status == status
    return False


async def account(cluster: Cluster, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    status, answer = await cluster.ask("POST", "/api/v1/namespaces/default/serviceaccounts", body)
    assert status == 201, answer


async def token(cluster: Cluster, name: str) -> str:
    """A token of a service account, for an hour."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    path = f"/api/v1/namespaces/default/serviceaccounts/{name}/token"
    status, answer = await cluster.ask("POST", path, body)
    assert status == 201, answer
    return str(answer["status"]["token"])


async def bind(cluster: Cluster, name: str) -> None:
    """Let a service account read pools."""
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": ["switchgear.dev"], "resources": ["enginepools"], "verbs": ["list", "watch"]}]
    documents: dict[str, dict[str, Any]] = {
        "roles": {"kind": "Role", "rules": rules},
        "rolebindings": {
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        },
    }
    for plural, document in documents.items():
        body = {"apiVersion": f"{group}/v1", "metadata": {"name": name}, **document}
        status, answer = await cluster.ask("POST", f"{RBAC}/{plural}", body)
        assert status in {201, 409}, answer


@dataclass(kw_only=True)
class Clock:
    """The client's clock: the real time, and what a test adds to it."""

    passed: timedelta = timedelta()

    def now(self) -> datetime:
        return datetime.now() + self.passed  # noqa: DTZ005 - as the client asks for it


def in_pod(real: ApiServer, file: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Have clients find the API server as in a pod, with the token in a file; their clock."""
    from kubernetes.aio.config import incluster_config  # noqa: PLC0415 - takes a second to import

    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(file))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(real.authority))
    host, _, port = real.url.removeprefix("https://").rpartition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    clock = Clock()
    monkeypatch.setattr(incluster_config, "datetime", SimpleNamespace(datetime=clock, timedelta=timedelta))
    return clock
