"""Versions, lists and watches of the double agree with each other, whatever is written."""

import json
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster_double.asking import Request
from tests.cluster_double.cluster import Answer, Cluster
from tests.cluster_double.journal import Journal
from tests.cluster_double.json_object import Object, copied

PATH = "/api/v1/namespaces/default/configmaps"
NAMES = st.sampled_from("abcd")
TIERS = st.sampled_from(["gold", "bronze"])
WRITES = st.one_of(
    st.tuples(st.just("create"), NAMES, TIERS),
    st.tuples(st.just("merge"), NAMES, TIERS),
    st.tuples(st.just("delete"), NAMES, TIERS),
)


def a_cluster(kept: int = 1000) -> Cluster:
    return Cluster(now=lambda: datetime(2030, 1, 1, tzinfo=UTC), rng=Random(0), journal=Journal(kept=kept))


def ask(cluster: Cluster, method: str, path: str, said: Any = None, **query: str) -> Answer:
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    body = b"" if said is None else json.dumps(said).encode()
    return cluster.answer(Request(method=method, path=path, query=query, content_type=kind, body=body))


def write(cluster: Cluster, what: str, name: str, tier: str) -> None:
    about = {"metadata": {"name": name, "labels": {"tier": tier}}}
    match what:
        case "create":
            ask(cluster, "POST", PATH, {"apiVersion": "v1", "kind": "ConfigMap", **about})
        case "merge":
            ask(cluster, "PATCH", f"{PATH}/{name}", about)
        case _:
            ask(cluster, "DELETE", f"{PATH}/{name}")


def named(items: list[Object]) -> dict[str, str]:
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in items}


@settings(max_examples=150)
@given(
    before=st.lists(WRITES, max_size=8),
    after=st.lists(WRITES, max_size=12),
    labels=st.sampled_from(["", "tier=gold"]),
)
def test_list_plus_watch_events_equal_the_current_list(
    before: list[tuple[str, str, str]], after: list[tuple[str, str, str]], labels: str
) -> None:
    cluster = a_cluster()
    for one in before:
        write(cluster, *one)
    listed = ask(cluster, "GET", PATH, labelSelector=labels).body
    version = listed["metadata"]["resourceVersion"]
    known = named(listed["items"])
    for one in after:
        write(cluster, *one)
    query = {"watch": "true", "resourceVersion": version, "labelSelector": labels}
    watching = cluster.watching(Request(method="GET", path=PATH, query=query))
    seen = int(version)
    for change in cluster.journal.since(watching.revision) or ():
        event = watching.told(change)
        if event is None:
            continue
        about = event["object"]["metadata"]
        assert int(about["resourceVersion"]) > seen
        seen = int(about["resourceVersion"])
        assert (about["name"] in known) is (event["type"] != "ADDED")
        if event["type"] == "DELETED":
            del known[about["name"]]
        else:
            known[about["name"]] = about["resourceVersion"]
    assert known == named(ask(cluster, "GET", PATH, labelSelector=labels).body["items"])


@settings(max_examples=100)
@given(writes=st.lists(WRITES, min_size=1, max_size=20), kept=st.integers(1, 30))
def test_uncompacted_resource_versions_list_as_they_were(writes: list[tuple[str, str, str]], kept: int) -> None:
    cluster = a_cluster(kept)
    pictures = {cluster.journal.revision: copied(dict(cluster.journal.objects))}
    for one in writes:
        write(cluster, *one)
        pictures[cluster.journal.revision] = copied(dict(cluster.journal.objects))
    for revision, picture in pictures.items():
        found = cluster.journal.at(revision)
        assert (found is None) is (revision < cluster.journal.compacted)
        assert found is None or found == picture
    assert cluster.journal.at(cluster.journal.revision) == cluster.journal.objects


@given(tiers=st.lists(TIERS, min_size=1, max_size=4))
def test_stored_objects_never_change_under_who_has_them(tiers: list[str]) -> None:
    cluster = a_cluster()
    write(cluster, "create", "a", "gold")
    mine = ask(cluster, "GET", f"{PATH}/a").body
    picture = copied(mine)
    for tier in tiers:
        write(cluster, "merge", "a", tier)
    assert mine == picture


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"resourceVersion": "x"}, 400),
        ({"resourceVersion": "999999"}, 504),
        ({"continue": "nonsense"}, 400),
        ({"labelSelector": "a in b"}, 400),
        ({"fieldSelector": "data"}, 400),
        ({"resourceVersion": "1", "resourceVersionMatch": "Exact"}, 200),
    ],
)
def test_invalid_list_request_is_refused(query: dict[str, str], code: int) -> None:
    answer = ask(a_cluster(), "GET", PATH, **query)
    assert (answer.code, answer.body["kind"]) == (code, "ConfigMapList" if code == 200 else "Status")


@pytest.mark.parametrize(
    ("method", "path", "said", "code"),
    [
        ("GET", "/api/v1/nothing", None, 404),
        ("GET", "/nothing", None, 404),
        ("GET", "/api/v1/nodes/a/status/b", None, 404),
        ("GET", "/api/v1/namespaces/default/nodes", None, 404),
        ("POST", f"{PATH}/a", {}, 405),
        ("POST", PATH, [], 400),
        ("POST", PATH, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}, 400),
        ("POST", PATH, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}, 422),
        ("POST", PATH, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "A_b"}}, 422),
        (
            "POST",
            PATH,
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "b"}},
            400,
        ),
        (
            "POST",
            PATH,
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "resourceVersion": "1"}},
            400,
        ),
        ("PUT", f"{PATH}/a", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}, 404),
        ("PUT", f"{PATH}/a", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}}, 400),
        ("DELETE", f"{PATH}/a", None, 404),
    ],
)
def test_request_that_makes_no_sense_is_refused(method: str, path: str, said: Any, code: int) -> None:
    answer = ask(a_cluster(), method, path, said)
    assert answer.code == code
    assert (answer.body["kind"], answer.body["code"]) == ("Status", code)
