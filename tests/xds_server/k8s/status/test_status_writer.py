"""The leader writes differences, and handles refusals."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.report import Verdict
from tests.cluster import Cluster, running_cluster
from tests.cluster_double import Troubles
from tests.eventually import eventually
from tests.xds_server.k8s.status.status_fixtures import NOW_S, conditions, decided, engine, fleet, scene, went
from xds_server.decide.decisions import Health
from xds_server.k8s.api_resources import ENGINE_POOLS, EVENTS, LEASES, PODS
from xds_server.k8s.kube_api import ApiError, ObjectSelector
from xds_server.k8s.policy_object import PolicyObject
from xds_server.k8s.status.readiness_gate import GATE, gate_condition
from xds_server.k8s.status.status_writer import SPACING_S, LeaderElectionConfig, StatusWriter
from xds_server.k8s.status.write_context import WriteContext
from xds_server.k8s.status.write_target import CACHED_FOR_S, SLOW_S
from xds_server.model.fleet import EngineId
from xds_server.model.pod_state import PodRef

PATIENT_S = 30.0
E1 = EngineId("pool", "e1")
POOL: dict[str, Any] = {
    "apiVersion": "switchgear.dev/v1alpha1",
    "kind": "EnginePool",
    "metadata": {"name": "pool"},
    "spec": {"model": "m", "endpoints": [{"name": "e1", "address": "127.0.0.1", "port": 8000, "zone": "a"}]},
}


class Stage:
    """A cluster with one pool, and its writer with a separate clock."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.now_s = 1000.0
        self.unix_s = 1_700_000_000.0
        self.scene: WriteContext | None = None
        self.asked: list[int] = []

    def writer(self, identity: str = "one", *, settle_s: float = 0.0) -> StatusWriter:
        def at(since: int) -> WriteContext | None:
            self.asked.append(since)
            return self.scene

        return StatusWriter(
            self.cluster.api,
            LeaderElectionConfig(namespace="default", lease="switchgear", identity=identity),
            at,
            settle_s=settle_s,
            clock=lambda: self.now_s,
            wall=lambda: self.unix_s,
        )

    async def pool(self) -> PolicyObject:
        """The pool as read by a source."""
        return read(await self.stored())

    async def stored(self) -> Mapping[str, Any]:
        return await self.cluster.api.get(ENGINE_POOLS, "default", "pool")

    async def status(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = (await self.stored()).get("status") or {}
        return status

    async def events(self) -> list[Mapping[str, Any]]:
        page = await self.cluster.api.page(ObjectSelector(resource=EVENTS, namespace="default"))
        return list(page.items)


def read(stored: Mapping[str, Any]) -> PolicyObject:
    metadata = stored["metadata"]
    return PolicyObject(
        kind="EnginePool",
        namespace="default",
        name="pool",
        uid=metadata["uid"],
        generation=metadata["generation"],
        resource_version=metadata["resourceVersion"],
        file="default/EnginePool/pool",
    )


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    async with running_cluster(folder) as cluster:
        await cluster.define()
        await cluster.put(POOL)
        yield Stage(cluster)


async def held(writer: StatusWriter) -> StatusWriter:
    """A writer with the Lease, without background tasks."""
    await writer._lease._attempt()
    assert writer.holds
    return writer


def test_difference_is_written_once(tmp_path: Path) -> None:
    async def play() -> None:
        async with stage(tmp_path) as on:
            one, writer = await on.pool(), await held(on.writer())
            on.scene = scene(one)
            await writer.write_once()
            stored = await on.stored()
            assert conditions(stored["status"]) == {
                "Accepted": ("True", "Accepted"),
                "Programmed": ("True", "Programmed"),
                "Healthy": ("True", "Healthy"),
            }
            assert stored["metadata"]["generation"] == one.generation
            # Repeated cycles write nothing, even after the source has seen the write.
            version = stored["metadata"]["resourceVersion"]
            for seen in (one, read(stored), read(stored)):
                on.scene, on.now_s = scene(seen), on.now_s + SPACING_S
                await writer.write_once()
            assert (await on.stored())["metadata"]["resourceVersion"] == version
            on.scene = scene(one, fleet=fleet(engine("e1", Verdict.HUNG)), engines={})
            await writer.write_once()
            counts = {"total": 1, "healthy": 0, "unknown": 0, "draining": 0, "unhealthy": 1}
            assert (await on.status())["engines"] == counts

    asyncio.run(play())


def test_only_the_leader_with_the_lease_writes(tmp_path: Path) -> None:
    async def play() -> None:
        async with stage(tmp_path) as on:
            on.scene = scene(await on.pool())
            first, second = await held(on.writer("one")), on.writer("two")
            await second._lease._attempt()
            await second.write_once()
            assert not on.asked
            assert await on.status() == {}
            task, other = asyncio.create_task(first.run()), asyncio.create_task(second.run())
            await eventually(on.status, "the first to write", PATIENT_S)
            await eventually(lambda: "one" in second.holder, "the second to wait", PATIENT_S)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not first.holds
            lease = await on.cluster.api.get(LEASES, "default", "switchgear")
            # Acquired within a cycle or two, not after the ten seconds of a crash.
            assert lease["spec"]["holderIdentity"] in {"", second._lease.identity}
            await eventually(lambda: second.holds, "the second to hold it", PATIENT_S)
            on.scene = scene(await on.pool(), hold_reason="half of the engines would go")
            await eventually(lambda: _held(on), "the second to write", PATIENT_S)
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)

    async def _held(on: Stage) -> bool:
        return conditions(await on.status())["Programmed"] == ("False", "Held")

    asyncio.run(play())


def test_resource_version_conflict_is_reread_and_retried(tmp_path: Path) -> None:
    async def play() -> None:
        async with stage(tmp_path) as on:
            one, writer = await on.pool(), await held(on.writer())
            on.scene = scene(one)
            await writer.write_once()
            labelled = {"metadata": {"labels": {"a": "b"}}}
            await on.cluster.api.merge(ENGINE_POOLS, "default", "pool", labelled)
            on.scene, on.now_s = scene(one, hold_reason="why"), on.now_s + SPACING_S
            await writer.write_once()  # over an outdated version
            assert conditions(await on.status())["Programmed"] == ("True", "Programmed")
            await writer.write_once()
            assert conditions(await on.status())["Programmed"] == ("False", "Held")
            assert (await on.stored())["metadata"]["labels"] == {"a": "b"}
            # Another client clears the status, and the source sees a new version.
            await on.cluster.api.merge(
                ENGINE_POOLS, "default", "pool", {"status": {"conditions": None}}, subresource="status"
            )
            on.scene, on.now_s = scene(await on.pool(), hold_reason="why"), on.now_s + SPACING_S
            await writer.write_once()
            assert conditions(await on.status())["Programmed"] == ("False", "Held")

    asyncio.run(play())


def test_deleted_object_and_its_namesake_are_not_written(
    tmp_path: Path,
) -> None:
    async def play() -> None:
        async with stage(tmp_path) as on:
            one, writer = await on.pool(), await held(on.writer())
            await on.cluster.api.delete(ENGINE_POOLS, "default", "pool")
            on.scene = scene(one)
            await writer.write_once()
            await writer.write_once()
            assert writer._said == {("enginepools", 404)}
            await on.cluster.put(POOL)
            on.now_s += SLOW_S + 1
            await writer.write_once()
            assert await on.status() == {}
            on.scene = scene(await on.pool())
            await writer.write_once()
            assert conditions(await on.status())["Accepted"] == ("True", "Accepted")

    asyncio.run(play())


def test_api_server_retry_after_is_honoured(tmp_path: Path) -> None:
    async def play() -> None:
        async with stage(tmp_path) as on:
            double = on.cluster.must_be_double("it answers 429 and 500 on order")
            writer = await held(on.writer())
            on.scene = scene(await on.pool())
            double.trouble(Troubles(too_many=1, only="enginepools"))
            await writer.write_once()
            await writer.write_once()
            assert await on.status() == {}
            on.now_s += 1.1  # Retry-After of the double
            await writer.write_once()
            assert await on.status() != {}
            on.scene, on.now_s = scene(await on.pool(), hold_reason="why"), on.now_s + CACHED_FOR_S + 1
            double.trouble(Troubles(failing=1, only="enginepools"))
            await writer.write_once()
            assert conditions(await on.status())["Programmed"] == ("True", "Programmed")
            on.now_s += 60
            await writer.write_once()
            assert conditions(await on.status())["Programmed"] == ("False", "Held")

    asyncio.run(play())


def test_ejection_events_are_recorded_once_by_the_leader(tmp_path: Path) -> None:
    async def play() -> None:
        async with stage(tmp_path) as on:
            await on.cluster.pod("e1", ip="127.0.0.1")
            stored = await on.cluster.api.get(PODS, "default", "e1")
            pods = {E1: PodRef(namespace="default", name="e1", uid=stored["metadata"]["uid"])}
            one, writer = await on.pool(), await held(on.writer())
            old, new = went(1, Health.UNHEALTHY, at=on.unix_s - 60), went(2, Health.UNHEALTHY, at=on.unix_s - 1)
            on.scene = scene(one, pods=pods, events=(old, new))
            await writer.write_once()
            (event,) = await on.events()
            assert event["involvedObject"]["uid"] == stored["metadata"]["uid"]
            assert (event["reason"], event["type"], event["count"]) == ("EngineEjected", "Warning", 1)
            on.scene = scene(one, pods=pods, events=(went(3, Health.UNHEALTHY, at=on.unix_s + 5),))
            await writer.write_once()
            assert on.asked == [0, 2]
            (event,) = await on.events()
            assert event["count"] == 2
            # The next leader saw the same, with its own event numbers.
            await writer._lease.release()
            second = await held(on.writer("two"))
            on.scene = scene(one, pods=pods, events=(went(1, Health.UNHEALTHY, at=on.unix_s + 5),))
            await second.write_once()
            (event,) = await on.events()
            assert event["count"] == 2

    asyncio.run(play())


def test_events_are_about_the_served_duplicate_pool(tmp_path: Path) -> None:
    async def play() -> None:
        async with stage(tmp_path) as on:
            one, writer = await on.pool(), await held(on.writer())
            namesake = replace(one, namespace="later", uid="another", serving=False)
            on.scene = scene(one, namesake, events=(went(1, Health.UNHEALTHY, at=on.unix_s - 1),))
            await writer.write_once()
            (event,) = await on.events()
            assert event["involvedObject"]["uid"] == one.uid

    asyncio.run(play())


def test_readiness_gate_condition_is_patched_on_declaring_pods_only(tmp_path: Path) -> None:
    async def play() -> None:
        async with stage(tmp_path) as on:
            await on.cluster.pod("e1", ip="127.0.0.1", readinessGates=[{"conditionType": GATE}])
            stored = await on.cluster.api.get(PODS, "default", "e1")
            one, writer = await on.pool(), await held(on.writer())

            async def condition_after(verdict: Verdict, health: Health, **ref: Any) -> tuple[str, str] | None:
                known = {"namespace": "default", "name": "e1", "uid": stored["metadata"]["uid"], "has_gate": True}
                on.scene = scene(
                    one,
                    pods={E1: PodRef(**{**known, **ref})},
                    fleet=fleet(engine("e1", verdict)),
                    engines={E1: decided(verdict, health)},
                    now_s=NOW_S,
                )
                await writer.write_once()
                pod = await on.cluster.api.get(PODS, "default", "e1")
                assert any(each["type"] == "Ready" for each in pod["status"]["conditions"])
                found = gate_condition(pod)
                return None if found is None else (found["status"], found["reason"])

            assert await condition_after(Verdict.READY, Health.HEALTHY, has_gate=False) is None
            assert await condition_after(Verdict.READY, Health.HEALTHY, uid="another") is None
            assert await condition_after(Verdict.READY, Health.HEALTHY) == ("True", "Producing")
            assert await condition_after(Verdict.HUNG, Health.HEALTHY) == ("True", "Producing")
            assert await condition_after(Verdict.HUNG, Health.UNHEALTHY) == ("False", "Hung")
            version = (await on.cluster.api.get(PODS, "default", "e1"))["metadata"]["resourceVersion"]
            assert await condition_after(Verdict.HUNG, Health.UNHEALTHY) == ("False", "Hung")
            after = await on.cluster.api.get(PODS, "default", "e1")
            assert after["metadata"]["resourceVersion"] == version

    asyncio.run(play())


def test_losing_the_lease_stops_a_write_round(tmp_path: Path) -> None:
    async def play() -> None:
        async with stage(tmp_path) as on:
            writer = await held(on.writer())
            on.scene = scene(await on.pool())
            get = on.cluster.api.get

            async def slow(*args: Any) -> Mapping[str, Any]:
                answer = await get(*args)
                writer._lease._renewed = None
                return answer

            on.cluster.api.get = slow  # type: ignore[method-assign]  # as if it had taken long
            await writer.write_once()
            on.cluster.api.get = get  # type: ignore[method-assign]  # and no longer
            assert await on.status() == {}

    asyncio.run(play())


def test_new_generation_status_waits_for_a_round(tmp_path: Path) -> None:
    async def play() -> None:
        async with stage(tmp_path) as on:
            writer = await held(on.writer(settle_s=1.0))
            on.scene = scene(await on.pool())
            for passed_s, written in ((0.0, False), (0.9, False), (0.2, True)):
                on.now_s += passed_s
                await writer.write_once()
                assert bool(await on.status()) is written
            await on.cluster.put({**POOL, "spec": {**POOL["spec"], "model": "other"}})
            on.scene, on.now_s = scene(await on.pool()), on.now_s + 5
            await writer.write_once()
            assert (await on.status())["observedGeneration"] == 1
            on.now_s += 1.1
            await writer.write_once()
            assert (await on.status())["observedGeneration"] == 2

    asyncio.run(play())


def test_missing_permission_is_logged_once(tmp_path: Path) -> None:
    async def play() -> None:
        async with stage(tmp_path) as on:
            writer = await held(on.writer())
            asked: list[str] = []

            async def forbidden(*args: Any, **_: Any) -> Mapping[str, Any]:
                asked.append(args[2])
                raise ApiError(403, "Forbidden", "no")

            on.cluster.api.replace = forbidden  # type: ignore[method-assign]  # what RBAC would do
            on.scene = scene(await on.pool())
            for _ in range(3):
                await writer.write_once()
            assert asked == ["pool"]
            assert writer._said == {("enginepools", 403)}
            on.now_s += SLOW_S + 1
            await writer.write_once()
            assert asked == ["pool", "pool"]

    asyncio.run(play())
