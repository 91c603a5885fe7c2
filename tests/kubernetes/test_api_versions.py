"""Objects in either version: one stored object, equal to every reader, and served by a control plane."""

from typing import Any

import yaml

from policies.document import API_VERSION, NEWEST_API_VERSION
from tests.cluster import CRDS, DEFINITIONS, Cluster
from tests.eventually import eventually
from tests.kubernetes.conftest import pool, watching
from xds_server.k8s.api_resources import ENGINE_POOLS, GROUP, ApiResource
from xds_server.k8s.kube_api import ObjectSelector

LIMIT_S = 60.0
NEWER = ApiResource(
    group=GROUP, version=NEWEST_API_VERSION.partition("/")[2], plural="enginepools", kind="EnginePool"
)


def newer(name: str, **spec: Any) -> dict[str, Any]:
    return {**pool(name, **spec), "apiVersion": NEWEST_API_VERSION}


async def defined(cluster: Cluster) -> None:
    await cluster.define()
    await eventually(lambda: serves(cluster, NEWER), "the newer version is served", LIMIT_S)


async def serves(cluster: Cluster, which: ApiResource) -> bool:
    return (await cluster.ask("GET", which.path()))[0] == 200


async def test_object_is_the_same_in_both_versions(cluster: Cluster) -> None:
    await defined(cluster)
    made = await cluster.api.create(NEWER, "default", newer("a", slotsPerEngine=4))
    read = await cluster.api.get(ENGINE_POOLS, "default", "a")
    assert (made["apiVersion"], read["apiVersion"]) == (NEWEST_API_VERSION, API_VERSION)
    assert {**read, "apiVersion": NEWEST_API_VERSION} == made


async def test_change_of_the_version_alone_writes_nothing(cluster: Cluster) -> None:
    await defined(cluster)
    made = await cluster.api.create(ENGINE_POOLS, "default", pool("a", slotsPerEngine=4))
    async with watching(cluster) as events:
        same = await cluster.api.replace(NEWER, "default", "a", {**made, "apiVersion": NEWEST_API_VERSION})
        assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        changed = await cluster.api.merge(NEWER, "default", "a", {"spec": {"slotsPerEngine": 5}})
        event = await events.next()
    assert (event.object["apiVersion"], event.object["spec"]["slotsPerEngine"]) == (API_VERSION, 5)
    assert changed["metadata"]["generation"] == made["metadata"]["generation"] + 1


async def test_apply_in_the_newer_version_continues_that_of_the_older(cluster: Cluster) -> None:
    await defined(cluster)
    await cluster.api.apply(ENGINE_POOLS, "default", "a", pool("a", slotsPerEngine=4), manager="kubectl")
    moved = await cluster.api.apply(NEWER, "default", "a", newer("a", slotsPerEngine=4), manager="kubectl")
    assert (moved["spec"]["slotsPerEngine"], moved["metadata"]["generation"]) == (4, 1)
    changed = await cluster.api.apply(NEWER, "default", "a", newer("a", slotsPerEngine=5), manager="kubectl")
    assert changed["spec"]["slotsPerEngine"] == 5


async def test_discovery_prefers_the_newer_version(cluster: Cluster) -> None:
    await defined(cluster)
    _, group = await cluster.ask("GET", f"/apis/{GROUP}")
    assert [one["groupVersion"] for one in group["versions"]] == [NEWEST_API_VERSION, API_VERSION]
    assert group["preferredVersion"]["groupVersion"] == NEWEST_API_VERSION


async def test_definitions_upgrade_and_downgrade_around_stored_objects(cluster: Cluster) -> None:
    path = CRDS / "enginepools.yaml"
    both = yaml.safe_load(path.read_text())
    name, spec = both["metadata"]["name"], both["spec"]
    older = {**both, "spec": {**spec, "versions": [one for one in spec["versions"] if one["storage"]]}}
    await cluster.api.create(DEFINITIONS, "", older)
    await eventually(lambda: serves(cluster, ENGINE_POOLS), "the older version is served", LIMIT_S)
    await cluster.api.create(ENGINE_POOLS, "default", pool("before"))
    assert not await serves(cluster, NEWER)

    # kubectl apply --server-side, as docs/upgrading.md says.
    await cluster.api.apply(DEFINITIONS, "", name, both, manager="kubectl")
    await eventually(lambda: serves(cluster, NEWER), "the newer version is served", LIMIT_S)
    assert (await cluster.api.get(NEWER, "default", "before"))["spec"] == {"model": "m"}
    await cluster.api.create(NEWER, "default", newer("during"))
    assert (await cluster.api.get(DEFINITIONS, "", name))["status"]["storedVersions"] == ["v1alpha1"]

    held = await cluster.api.get(DEFINITIONS, "", name)
    await cluster.api.replace(DEFINITIONS, "", name, {**held, "spec": {**held["spec"], **older["spec"]}})

    async def gone() -> bool:
        return not await serves(cluster, NEWER)

    await eventually(gone, "the newer version is no longer served", LIMIT_S)
    found = await cluster.api.page(ObjectSelector(resource=ENGINE_POOLS))
    assert sorted(one["metadata"]["name"] for one in found.items) == ["before", "during"]
