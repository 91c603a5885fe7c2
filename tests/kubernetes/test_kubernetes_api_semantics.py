"""What the Kubernetes API promises, asked of the double, and of a real API server by ``make cluster``.

Each test is written against what Kubernetes documents, and holds for both.
"""

from typing import Any

import pytest

from tests.cluster import CRDS, DEFINITIONS, NAMESPACES, Cluster
from tests.eventually import eventually
from tests.kubernetes.conftest import pool, watching
from xds_server.k8s.api_resources import ENDPOINT_SLICES, ENGINE_POOLS, EVENTS, LEASES, PODS
from xds_server.k8s.kube_api import ApiError, ObjectSelector

LIMIT_S = 60.0
POOLS = "/apis/switchgear.dev/v1alpha1/namespaces/default/enginepools"


def condition(name: str, status: str) -> dict[str, Any]:
    return {
        "type": name,
        "status": status,
        "reason": "Tested",
        "message": "",
        "lastTransitionTime": "2030-01-01T00:00:00Z",
    }


async def refused(asked: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await asked
    return caught.value


async def test_new_object_has_what_the_api_gives_it(cluster: Cluster) -> None:
    await cluster.define()
    made = await cluster.api.create(ENGINE_POOLS, "default", {**pool("a"), "status": {"digest": "mine"}})
    about = made["metadata"]
    assert about["uid"]
    assert about["creationTimestamp"].endswith("Z")
    assert about["generation"] == 1
    assert int(about["resourceVersion"]) > 0
    assert "status" not in made
    assert await cluster.api.get(ENGINE_POOLS, "default", "a") == made


async def test_name_is_taken_once(cluster: Cluster) -> None:
    await cluster.define()
    await cluster.api.create(ENGINE_POOLS, "default", pool("a"))
    error = await refused(cluster.api.create(ENGINE_POOLS, "default", pool("a")))
    assert (error.status, error.reason) == (409, "AlreadyExists")


async def test_missing_object_kind_and_namespace_are_not_found(cluster: Cluster) -> None:
    error = await refused(cluster.api.get(ENGINE_POOLS, "default", "a"))
    assert error.missing  # the kind is undefined
    await cluster.define()
    error = await refused(cluster.api.get(ENGINE_POOLS, "default", "a"))
    assert (error.status, error.reason) == (404, "NotFound")
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {}}
    error = await refused(cluster.api.create(LEASES, "nowhere", lease))
    assert error.missing
    await cluster.namespace("nowhere")
    assert (await cluster.api.create(LEASES, "nowhere", lease))["metadata"]["namespace"] == "nowhere"


async def test_replace_with_a_stale_resource_version_is_a_conflict(cluster: Cluster) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {}}
    first = await cluster.api.create(LEASES, "default", lease)
    second = {**first, "spec": {"holderIdentity": "a"}}
    await cluster.api.replace(LEASES, "default", "l", second)
    error = await refused(cluster.api.replace(LEASES, "default", "l", {**first, "spec": {"holderIdentity": "b"}}))
    assert (error.status, error.reason) == (409, "Conflict")
    error = await refused(cluster.api.replace(LEASES, "default", "l", lease))
    assert (error.status, error.reason) == (422, "Invalid")
    assert (await cluster.api.get(LEASES, "default", "l"))["spec"]["holderIdentity"] == "a"
    another = {"metadata": {"uid": "another"}, "spec": {"holderIdentity": "c"}}
    assert (await refused(cluster.api.merge(LEASES, "default", "l", another))).status == 422  # uid is immutable
    other = {**first, "metadata": {**first["metadata"], "uid": "another"}}
    assert (await refused(cluster.api.replace(LEASES, "default", "l", other))).conflict
    stale = {
        "metadata": {"resourceVersion": first["metadata"]["resourceVersion"]},
        "spec": {"holderIdentity": "c"},
    }
    assert (await refused(cluster.api.merge(LEASES, "default", "l", stale))).conflict


async def test_no_op_update_keeps_resource_version_and_sends_no_event(cluster: Cluster) -> None:
    await cluster.define()
    made = await cluster.api.create(ENGINE_POOLS, "default", pool("a"))
    async with watching(cluster) as events:
        same = await cluster.api.merge(ENGINE_POOLS, "default", "a", {"spec": {"model": "m"}})
        assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        await cluster.api.merge(ENGINE_POOLS, "default", "a", {"spec": {"model": "n"}})
        assert (await events.next()).object["spec"]["model"] == "n"


async def test_generation_increases_with_spec_changes_only(cluster: Cluster) -> None:
    await cluster.define()
    await cluster.api.create(ENGINE_POOLS, "default", pool("a"))

    async def after(patch: dict[str, Any], subresource: str = "") -> int:
        merged = await cluster.api.merge(ENGINE_POOLS, "default", "a", patch, subresource=subresource)
        generation: int = merged["metadata"]["generation"]
        return generation

    assert await after({"metadata": {"labels": {"a": "b"}}}) == 1
    assert await after({"status": {"digest": "d"}}, "status") == 1
    assert await after({"spec": {"slotsPerEngine": 4}}) == 2
    assert await after({"metadata": {"generation": 9}}) == 2


async def test_status_subresource_is_written_separately(cluster: Cluster) -> None:
    await cluster.define()
    await cluster.api.create(ENGINE_POOLS, "default", pool("a"))
    both = {"spec": {"model": "n"}, "status": {"digest": "d"}, "metadata": {"labels": {"x": "y"}}}
    told = await cluster.api.merge(ENGINE_POOLS, "default", "a", both, subresource="status")
    assert (told["spec"]["model"], told["status"]["digest"]) == ("m", "d")
    assert "labels" not in told["metadata"]
    told = await cluster.api.merge(ENGINE_POOLS, "default", "a", {**both, "status": {"digest": "e"}})
    assert (told["spec"]["model"], told["status"]["digest"]) == ("n", "d")
    replaced = await cluster.api.replace(ENGINE_POOLS, "default", "a", {**told, "status": {}})
    assert replaced["status"]["digest"] == "d"


async def test_merge_patch_takes_nulls_away_and_replaces_lists(cluster: Cluster) -> None:
    await cluster.define()
    engines = [{"address": "10.0.0.1", "port": 1}, {"address": "10.0.0.2", "port": 1}]
    await cluster.api.create(ENGINE_POOLS, "default", pool("a", endpoints=engines, slotsPerEngine=4))
    patch = {"spec": {"slotsPerEngine": None, "endpoints": engines[1:]}}
    assert (await cluster.api.merge(ENGINE_POOLS, "default", "a", patch))["spec"] == {
        "model": "m",
        "endpoints": engines[1:],
    }


async def test_json_patch_tests_before_it_writes(cluster: Cluster) -> None:
    await cluster.define()
    await cluster.api.create(ENGINE_POOLS, "default", pool("a"))
    steps = [
        {"op": "test", "path": "/spec/model", "value": "m"},
        {"op": "replace", "path": "/spec/model", "value": "n"},
        {"op": "add", "path": "/spec/endpoints", "value": []},
        {"op": "add", "path": "/spec/endpoints/-", "value": {"address": "10.0.0.1", "port": 1}},
    ]
    status, said = await cluster.ask("PATCH", f"{POOLS}/a", steps, content_type="application/json-patch+json")
    assert (status, said["spec"]["model"], len(said["spec"]["endpoints"])) == (200, "n", 1)
    status, _ = await cluster.ask("PATCH", f"{POOLS}/a", steps, content_type="application/json-patch+json")
    assert status == 422


async def test_strategic_patch_joins_conditions_of_pods_and_is_refused_for_custom_resources(
    cluster: Cluster,
) -> None:
    await cluster.node("n")
    await cluster.pod("p", node="n", ready=True)
    await cluster.condition("p", "switchgear.dev/engine-ready", held=False)
    pod = await cluster.condition("p", "Ready", held=False)
    assert {one["type"]: one["status"] for one in pod["status"]["conditions"]} == {
        "Ready": "False",
        "switchgear.dev/engine-ready": "False",
    }
    await cluster.define()
    await cluster.api.create(ENGINE_POOLS, "default", pool("a"))
    error = await refused(cluster.api.strategic(ENGINE_POOLS, "default", "a", {"spec": {"model": "n"}}))
    assert error.status == 415


async def test_paginated_list_is_one_consistent_snapshot(cluster: Cluster) -> None:
    await cluster.define()
    for name in "abcde":
        await cluster.api.create(ENGINE_POOLS, "default", pool(name))
    which = ObjectSelector(resource=ENGINE_POOLS)
    page = await cluster.api.page(which, limit=2)
    await cluster.api.delete(ENGINE_POOLS, "default", "c")
    await cluster.api.create(ENGINE_POOLS, "default", pool("f"))
    names = [one["metadata"]["name"] for one in page.items]
    version = page.resource_version
    while page.more:
        page = await cluster.api.page(which, limit=2, more=page.more)
        names += [one["metadata"]["name"] for one in page.items]
        assert page.resource_version == version
    assert names == list("abcde")
    now = await cluster.api.page(which)
    assert [one["metadata"]["name"] for one in now.items] == list("abdef")
    assert int(now.resource_version) > int(version)


async def test_watch_sends_every_event_after_its_resource_version_in_order(cluster: Cluster) -> None:
    await cluster.define()
    first = await cluster.api.create(ENGINE_POOLS, "default", pool("a"))
    await cluster.api.create(ENGINE_POOLS, "default", pool("b"))
    await cluster.api.merge(ENGINE_POOLS, "default", "a", {"spec": {"model": "n"}})
    await cluster.api.delete(ENGINE_POOLS, "default", "b")
    async with watching(cluster, since=first["metadata"]["resourceVersion"]) as events:
        told = [await events.next() for _ in range(3)]
        await cluster.api.create(ENGINE_POOLS, "default", pool("c"))
        told.append(await events.next())
    assert [(one.type, one.object["metadata"]["name"]) for one in told] == [
        ("ADDED", "b"),
        ("MODIFIED", "a"),
        ("DELETED", "b"),
        ("ADDED", "c"),
    ]
    versions = [int(one.object["metadata"]["resourceVersion"]) for one in told]
    assert versions == sorted(set(versions))
    assert all(one.object["kind"] == "EnginePool" for one in told)


async def test_watch_without_resource_version_begins_with_existing_objects(cluster: Cluster) -> None:
    await cluster.define()
    await cluster.api.create(ENGINE_POOLS, "default", pool("a"))
    async with watching(cluster, since="0") as events:
        assert await events.name() == ("ADDED", "a")
        await cluster.api.create(ENGINE_POOLS, "default", pool("b"))
        assert await events.name() == ("ADDED", "b")


async def test_object_leaving_the_selector_is_a_deleted_watch_event(cluster: Cluster) -> None:
    await cluster.define()
    async with watching(cluster, ObjectSelector(resource=ENGINE_POOLS, labels="tier in (gold,silver)")) as events:
        await cluster.api.create(ENGINE_POOLS, "default", pool("a"))
        for tier in ("gold", "silver", "bronze", "gold"):
            await cluster.api.merge(ENGINE_POOLS, "default", "a", {"metadata": {"labels": {"tier": tier}}})
        assert [await events.name() for _ in range(4)] == [
            ("ADDED", "a"),
            ("MODIFIED", "a"),
            ("DELETED", "a"),
            ("ADDED", "a"),
        ]


async def test_watch_ends_after_timeout_seconds(cluster: Cluster) -> None:
    await cluster.define()
    async with watching(cluster, timeout_s=1) as events:
        with pytest.raises(StopAsyncIteration):
            await events.next()


async def test_selectors_choose_by_labels_and_fields(cluster: Cluster) -> None:
    for node in ("n1", "n2"):
        await cluster.node(node)
    await cluster.pod("a", node="n1", labels={"app": "x", "tier": "gold"})
    await cluster.pod("b", node="n2", labels={"app": "x"})
    await cluster.pod("c", node="n2", labels={"app": "y"}, ready=False)

    async def names(labels: str = "", fields: str = "") -> str:
        page = await cluster.api.page(ObjectSelector(resource=PODS, labels=labels, fields=fields))
        return "".join(one["metadata"]["name"] for one in page.items)

    assert await names("app=x") == "ab"
    assert await names("app==x,tier") == "a"
    assert await names("!tier") == "bc"
    assert await names("app!=x") == "c"
    assert await names("tier notin (gold)") == "bc"
    assert await names(fields="spec.nodeName=n2") == "bc"
    assert await names("app=x", "spec.nodeName!=n1") == "b"
    assert await names(fields="metadata.name=c,status.phase=Running") == "c"
    assert await names(fields="spec.hostNetwork=true") == ""
    assert await names("app=x", "spec.hostNetwork=false") == "ab"
    assert (await refused(names(fields="spec.priority=0"))).status == 400


async def test_list_of_a_built_in_kind_says_the_kind_once(cluster: Cluster) -> None:
    await cluster.node("n")
    await cluster.pod("p", node="n")
    page = await cluster.api.page(ObjectSelector(resource=PODS, namespace="default"))
    assert "kind" not in page.items[0]
    assert (await cluster.api.get(PODS, "default", "p"))["kind"] == "Pod"


async def test_pod_on_a_node_is_deleted_after_its_grace_period(cluster: Cluster) -> None:
    await cluster.node("n")
    await cluster.pod("p", node="n", terminationGracePeriodSeconds=120)
    async with watching(cluster, ObjectSelector(resource=PODS)) as events:
        await cluster.api.delete(PODS, "default", "p")
        event = await events.next()
        assert event.type == "MODIFIED"
        assert event.object["metadata"]["deletionTimestamp"]
        assert event.object["metadata"]["deletionGracePeriodSeconds"] == 120
        await cluster.ask("DELETE", "/api/v1/namespaces/default/pods/p", gracePeriodSeconds="0")
        # A real API server tells the shorter grace first.
        while (event := await events.next()).type == "MODIFIED":
            pass
        assert event.type == "DELETED"
    assert (await refused(cluster.api.get(PODS, "default", "p"))).missing


async def test_pod_without_a_node_goes_at_once(cluster: Cluster) -> None:
    await cluster.pod("p")
    await cluster.api.delete(PODS, "default", "p")
    assert (await refused(cluster.api.get(PODS, "default", "p"))).missing


async def test_finalizer_holds_what_is_deleted(cluster: Cluster) -> None:
    await cluster.define()
    held = pool("a")
    held["metadata"]["finalizers"] = ["switchgear.dev/test"]
    await cluster.api.create(ENGINE_POOLS, "default", held)
    await cluster.api.delete(ENGINE_POOLS, "default", "a")
    assert (await cluster.api.get(ENGINE_POOLS, "default", "a"))["metadata"]["deletionTimestamp"]
    await cluster.api.merge(ENGINE_POOLS, "default", "a", {"metadata": {"finalizers": None}})
    assert (await refused(cluster.api.get(ENGINE_POOLS, "default", "a"))).missing


async def test_delete_with_a_uid_precondition_of_another_object_is_a_conflict(cluster: Cluster) -> None:
    await cluster.define()
    await cluster.api.create(ENGINE_POOLS, "default", pool("a"))
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "another"}}
    status, said = await cluster.ask("DELETE", f"{POOLS}/a", options)
    assert (status, said["reason"]) == (409, "Conflict")
    await cluster.api.delete(ENGINE_POOLS, "default", "a", dry_run=True)
    assert await cluster.api.get(ENGINE_POOLS, "default", "a")


async def test_invalid_object_is_refused_with_its_field(cluster: Cluster) -> None:
    await cluster.define()
    wrong = pool("a", slotsPerEngine=0, endpoints=[{"address": "10.0.0.1"}], serviceTime="2")
    status, said = await cluster.ask("POST", POOLS, wrong)
    assert (status, said["reason"]) == (422, "Invalid")
    causes = {one["field"]: one["reason"] for one in said["details"]["causes"]}
    assert causes["spec.slotsPerEngine"] == "FieldValueInvalid"
    assert causes["spec.endpoints[0].port"] == "FieldValueRequired"
    assert "spec.serviceTime" in causes
    await cluster.api.create(ENGINE_POOLS, "default", pool("a"))
    assert (
        await refused(cluster.api.merge(ENGINE_POOLS, "default", "a", {"spec": {"model": None}}))
    ).status == 422


async def test_cel_rule_runs_after_schema_validation(cluster: Cluster) -> None:
    await cluster.define()
    error = await refused(cluster.put(pool("a", serviceTime="5s", longestServiceTime="1s")))
    assert error.status == 422
    assert "longestServiceTime is at least serviceTime" in error.message
    await cluster.put(pool("a", serviceTime="5s"))
    patch = {"spec": {"longestServiceTime": "4s"}}
    assert (await refused(cluster.api.merge(ENGINE_POOLS, "default", "a", patch))).status == 422


async def test_two_engines_at_one_address_are_refused(cluster: Cluster) -> None:
    await cluster.define()
    engine = {"address": "10.0.0.1", "port": 8000}
    status, said = await cluster.ask("POST", POOLS, pool("a", endpoints=[engine, {**engine, "weight": 2}]))
    assert status == 422
    assert said["details"]["causes"][0]["reason"] == "FieldValueDuplicate"


async def test_unknown_fields_are_dropped_or_refused_as_asked(cluster: Cluster) -> None:
    await cluster.define()
    made = await cluster.api.create(ENGINE_POOLS, "default", pool("a", colour="red"))
    assert "colour" not in made["spec"]
    status, said = await cluster.ask("POST", POOLS, pool("b", colour="red"), fieldValidation="Strict")
    assert status == 400
    assert 'unknown field "spec.colour"' in said["message"]


async def test_last_accepted_preserves_unknown_fields(cluster: Cluster) -> None:
    await cluster.define()
    await cluster.api.create(ENGINE_POOLS, "default", pool("a"))
    status = {
        "lastAccepted": {"model": "old", "anything": [1, {"a": None}]},
        "conditions": [condition("Accepted", "False")],
    }
    told = await cluster.api.merge(ENGINE_POOLS, "default", "a", {"status": status}, subresource="status")
    assert told["status"]["lastAccepted"]["anything"][0] == 1
    wrong = {"status": {"conditions": [{"type": "Accepted", "status": "Perhaps"}]}}
    error = await refused(cluster.api.merge(ENGINE_POOLS, "default", "a", wrong, subresource="status"))
    assert error.status == 422


async def test_server_side_apply_owns_its_fields(cluster: Cluster) -> None:
    await cluster.define()
    api = cluster.api
    await api.apply(ENGINE_POOLS, "default", "a", pool("a", slotsPerEngine=4), manager="one")
    error = await refused(
        api.apply(ENGINE_POOLS, "default", "a", pool("a", slotsPerEngine=8), manager="two", force=False)
    )
    assert (error.status, error.reason) == (409, "Conflict")
    assert '"one"' in error.message
    assert ".spec.slotsPerEngine" in error.message
    # To say the same is to share.
    await api.apply(ENGINE_POOLS, "default", "a", pool("a", slotsPerEngine=4), manager="two", force=False)
    told = await api.apply(ENGINE_POOLS, "default", "a", pool("a"), manager="one")
    assert told["spec"]["slotsPerEngine"] == 4  # "two" still owns it
    told = await api.apply(ENGINE_POOLS, "default", "a", pool("a"), manager="two")
    assert "slotsPerEngine" not in told["spec"]
    await api.apply(ENGINE_POOLS, "default", "a", pool("a", slotsPerEngine=4), manager="one")
    told = await api.apply(ENGINE_POOLS, "default", "a", pool("a", slotsPerEngine=8), manager="two", force=True)
    assert told["spec"]["slotsPerEngine"] == 8
    told = await api.apply(ENGINE_POOLS, "default", "a", pool("a"), manager="one")
    assert told["spec"]["slotsPerEngine"] == 8  # it is two's now
    assert {one["manager"] for one in told["metadata"]["managedFields"]} == {"one", "two"}


async def test_map_list_items_have_their_own_field_managers(cluster: Cluster) -> None:
    await cluster.define()
    engines = [{"address": f"10.0.0.{number}", "port": 80, "weight": number} for number in (1, 2)]
    for manager, engine in zip(("one", "two"), engines, strict=True):
        told = await cluster.api.apply(
            ENGINE_POOLS, "default", "a", pool("a", endpoints=[engine]), manager=manager, force=False
        )
    assert told["spec"]["endpoints"] == engines
    told = await cluster.api.apply(ENGINE_POOLS, "default", "a", pool("a"), manager="one")
    assert told["spec"]["endpoints"] == engines[1:]


async def test_non_apply_writes_take_field_ownership(cluster: Cluster) -> None:
    await cluster.define()
    await cluster.api.apply(ENGINE_POOLS, "default", "a", pool("a", slotsPerEngine=4), manager="one")
    await cluster.api.merge(ENGINE_POOLS, "default", "a", {"spec": {"slotsPerEngine": 8}})
    error = await refused(
        cluster.api.apply(ENGINE_POOLS, "default", "a", pool("a", slotsPerEngine=4), manager="one", force=False)
    )
    assert error.conflict


async def test_apply_of_the_status_leaves_the_rest(cluster: Cluster) -> None:
    await cluster.define()
    await cluster.api.apply(ENGINE_POOLS, "default", "a", pool("a"), manager="author")
    about = {"apiVersion": "switchgear.dev/v1alpha1", "kind": "EnginePool", "metadata": {"name": "a"}}
    for manager, name in (("one", "Accepted"), ("two", "Programmed")):
        told = await cluster.api.apply(
            ENGINE_POOLS,
            "default",
            "a",
            {**about, "status": {"conditions": [condition(name, "True")]}},
            manager=manager,
            subresource="status",
        )
    assert [one["type"] for one in told["status"]["conditions"]] == ["Accepted", "Programmed"]
    assert told["spec"] == {"model": "m"}
    told = await cluster.api.apply(
        ENGINE_POOLS, "default", "a", {**about, "status": {}}, manager="one", subresource="status"
    )
    assert [one["type"] for one in told["status"]["conditions"]] == ["Programmed"]


async def test_dry_run_judges_and_writes_nothing(cluster: Cluster) -> None:
    await cluster.define()
    told = await cluster.api.apply(ENGINE_POOLS, "default", "a", pool("a"), manager="one", dry_run=True)
    assert told["spec"]["model"] == "m"
    assert (await refused(cluster.api.get(ENGINE_POOLS, "default", "a"))).missing
    wrong = pool("a", slotsPerEngine=0)
    asked = cluster.api.apply(ENGINE_POOLS, "default", "a", wrong, manager="one", dry_run=True)
    assert (await refused(asked)).status == 422


async def test_apply_without_a_manager_is_refused(cluster: Cluster) -> None:
    await cluster.define()
    status, said = await cluster.ask("PATCH", f"{POOLS}/a", pool("a"), content_type="application/apply-patch+yaml")
    assert status == 422
    assert "fieldManager" in said["message"]


async def test_event_can_be_recorded(cluster: Cluster) -> None:
    about = {"kind": "Pod", "namespace": "default", "name": "p"}
    event = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "p."}, "involvedObject": about,
        "reason": "Ejected", "message": "hung", "type": "Warning",
    }  # fmt: skip
    made = await cluster.api.create(EVENTS, "default", event)
    assert made["metadata"]["name"].startswith("p.")
    page = await cluster.api.page(ObjectSelector(resource=EVENTS, fields="involvedObject.name=p,reason=Ejected"))
    assert len(page.items) == 1


async def test_discovery_names_what_was_defined_and_forgets_it(cluster: Cluster) -> None:
    await cluster.define()
    said = await cluster.api.get_raw("/apis/switchgear.dev/v1alpha1")
    names = {one["name"]: one for one in said["resources"]}
    assert names["enginepools"]["shortNames"] == ["epool"]
    assert names["enginepools"]["categories"] == ["switchgear"]
    assert "enginepools/status" in names
    groups = await cluster.api.get_raw("/apis")
    assert "switchgear.dev" in {one["name"] for one in groups["groups"]}


async def test_table_columns_are_additional_printer_columns(cluster: Cluster) -> None:
    await cluster.define()
    await cluster.api.create(ENGINE_POOLS, "default", pool("a"))
    status = {"engines": {"total": 3, "healthy": 2}, "conditions": [condition("Accepted", "True")]}
    await cluster.api.merge(ENGINE_POOLS, "default", "a", {"status": status}, subresource="status")
    _, said = await cluster.ask("GET", POOLS, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    heads = [one["name"] for one in said["columnDefinitions"]]
    row = dict(zip(heads, said["rows"][0]["cells"], strict=True))
    assert (row["Name"], row["Model"], row["Engines"], row["Healthy"]) == ("a", "m", 3, 2)
    assert (row["Accepted"], row["Programmed"]) == ("True", None)


async def test_server_that_is_gone_comes_back_with_all_it_had(cluster: Cluster) -> None:
    await cluster.namespace("one")
    await cluster.down()
    with pytest.raises(ApiError) as caught:
        await cluster.api.page(ObjectSelector(resource=PODS))
    assert caught.value.status == 0
    await cluster.up()
    assert await cluster.api.get(NAMESPACES, "", "one")


async def test_slices_follow_pods(cluster: Cluster) -> None:
    cluster.must_have_controllers()
    which = ObjectSelector(resource=ENDPOINT_SLICES, namespace="default", labels="kubernetes.io/service-name=chat")
    await cluster.node("n", zone="zone-a")
    await cluster.service("chat", selector={"app": "chat"}, ports={"http": "api", "agent": 9000})
    async with watching(cluster, which) as events:
        await cluster.pod("p", node="n", ip="10.0.0.1", labels={"app": "chat"}, ports={"api": 8000}, ready=False)

        async def becomes(*wanted: tuple[bool, bool, bool]) -> None:
            """Wait until the endpoints have these conditions: ready, serving, terminating."""
            found: list[tuple[bool, ...]] | None = None
            while found != list(wanted):
                said = (await events.next()).object["endpoints"]
                # Null, not an empty list, without pods.
                assert said is None or said
                conditions = [one["conditions"] for one in said or ()]
                found = [tuple(one[key] for key in ("ready", "serving", "terminating")) for one in conditions]

        await becomes((False, False, False))
        await cluster.condition("p", "Ready", held=True)
        await becomes((True, True, False))
        said = (await cluster.api.page(which)).items[0]
        assert (said["endpoints"][0]["zone"], said["endpoints"][0]["targetRef"]["name"]) == ("zone-a", "p")
        assert [(one["name"], one["port"]) for one in said["ports"]] == [("http", 8000), ("agent", 9000)]
        await cluster.api.delete(PODS, "default", "p")
        await becomes((False, True, True))
        await cluster.ask("DELETE", "/api/v1/namespaces/default/pods/p", gracePeriodSeconds="0")
        await becomes()


async def test_slice_lists_no_pod_whose_node_does_not_exist(cluster: Cluster) -> None:
    cluster.must_have_controllers()
    which = ObjectSelector(resource=ENDPOINT_SLICES, namespace="default", labels="kubernetes.io/service-name=chat")
    await cluster.service("chat", selector={"app": "chat"}, ports={"http": 8000})
    await cluster.pod("lost", node="gone", ip="10.0.0.2", labels={"app": "chat"})
    await cluster.node("n")
    await cluster.pod("p", node="n", ip="10.0.0.1", labels={"app": "chat"})

    async def names() -> list[str]:
        slices = (await cluster.api.page(which)).items
        return [one["targetRef"]["name"] for part in slices for one in part["endpoints"] or ()]

    await eventually(names, "an endpoint", LIMIT_S)
    assert await names() == ["p"]


async def test_deleting_a_namespace_deletes_its_objects(cluster: Cluster) -> None:
    cluster.must_have_controllers()
    await cluster.namespace("one")
    await cluster.pod("p", namespace="one")
    await cluster.api.delete(NAMESPACES, "", "one")

    async def gone() -> bool:
        return not (await cluster.api.page(ObjectSelector(resource=PODS))).items

    await eventually(gone, "its pod is gone", LIMIT_S)


async def test_deleting_a_crd_deletes_its_objects(cluster: Cluster) -> None:
    await cluster.define()
    await cluster.api.create(ENGINE_POOLS, "default", pool("a"))
    await cluster.api.delete(DEFINITIONS, "", "enginepools.switchgear.dev")

    async def missing(asked: Any) -> bool:
        try:
            await asked
        except ApiError as error:
            return error.missing
        return False

    def undefined() -> Any:
        return missing(cluster.api.get(DEFINITIONS, "", "enginepools.switchgear.dev"))

    def unserved() -> Any:
        return missing(cluster.api.page(ObjectSelector(resource=ENGINE_POOLS)))

    await eventually(undefined, "the definition is gone", LIMIT_S)
    # A real server may serve the paths of a definition a moment longer than the definition.
    await eventually(unserved, "the paths of its objects are gone", LIMIT_S)
    await cluster.define(CRDS / "enginepools.yaml")
    assert (await cluster.api.page(ObjectSelector(resource=ENGINE_POOLS))).items == ()
