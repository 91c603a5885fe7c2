"""What is written, and in what order."""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from istio.live.desired_state import (
    MANAGED_LABEL,
    NOTHING_DESIRED,
    SERVING_LABEL,
    DesiredState,
    DesiredWorkloadEntry,
    PodServingLabel,
)
from istio.live.write_plan import ApplyEntry, MarkPod, RemoveEntry, RestoreEntry, UnmarkPod, write_plan, write_text
from tests.istio.live.conftest import pod
from xds_server.decide.decisions import Health

Asked = Callable[..., DesiredState]


def a_pod(name: str, label: str | None, uid: str = "") -> dict[str, Any]:
    labels = {"app": "vllm"} if label is None else {"app": "vllm", SERVING_LABEL: label}
    return {"metadata": {"namespace": "models", "name": name, "uid": uid or f"uid-{name}", "labels": labels}}


def test_matching_state_writes_nothing(asked: Asked) -> None:
    want = asked(out={"chat/b": Health.UNHEALTHY}, pods={"chat/a": pod("a-0")})
    entries = {key: one.body() for key, one in want.entries.items()}
    assert write_plan(want, {("models", "a-0"): a_pod("a-0", "true")}, entries) == ()


def test_foreign_fields_of_an_entry_are_ignored(asked: Asked) -> None:
    want = asked()
    entries: dict[tuple[str, str], Any] = {key: one.body() for key, one in want.entries.items()}
    entries["models", "chat.a"]["metadata"]["labels"]["theirs"] = "x"
    entries["models", "chat.a"]["status"] = {"conditions": []}
    assert write_plan(want, {}, entries) == ()


def test_admissions_are_written_before_ejections(asked: Asked) -> None:
    want = asked(
        out={"chat/a": Health.UNHEALTHY, "chat/c": Health.UNHEALTHY},
        pods={"chat/a": pod("a-0"), "chat/b": pod("b-0")},
    )
    pods = {("models", "a-0"): a_pod("a-0", "true"), ("models", "b-0"): a_pod("b-0", "false")}
    writes = write_plan(want, pods, {})
    serving = [one.mark.serving if isinstance(one, MarkPod) else one.entry.serving for one in writes]  # type: ignore[union-attr]
    assert serving == sorted(serving, reverse=True)
    assert [write_text(one) for one in writes][-2:] == [
        "pod models/a-0 out of rotation: because",
        "workload entry models/chat.c out of rotation: because",
    ]


def test_pod_with_another_uid_is_not_written(asked: Asked) -> None:
    want = asked(out={"chat/a": Health.UNHEALTHY}, pods={"chat/a": pod("a-0")})
    entries = {key: one.body() for key, one in want.entries.items()}
    assert write_plan(want, {("models", "a-0"): a_pod("a-0", "true", uid="another")}, entries) == ()


def test_a_pod_without_a_label_gets_one(asked: Asked) -> None:
    want = asked(pods={"chat/a": pod("a-0")})
    entries = {key: one.body() for key, one in want.entries.items()}
    assert write_plan(want, {}, entries) == (MarkPod(mark=want.pods["models", "a-0"]),)


def test_remove_deletes_only_our_objects(asked: Asked) -> None:
    theirs = {"metadata": {"namespace": "models", "name": "vm", "labels": {MANAGED_LABEL: "Helm"}}, "spec": {}}
    entries: dict[tuple[str, str], Any] = {key: one.body() for key, one in asked().entries.items()}
    pods = {("models", "a-0"): a_pod("a-0", "true"), ("models", "x"): a_pod("x", None)}
    writes = write_plan(NOTHING_DESIRED, pods, {**entries, ("models", "vm"): theirs})
    assert UnmarkPod(namespace="models", name="a-0", uid="uid-a-0") in writes
    removed = {(one.namespace, one.name) for one in writes if isinstance(one, RemoveEntry)}
    assert removed == set(entries)
    assert len(writes) == len(entries) + 1


def test_an_exported_entry_keeps_what_it_has_and_serves_when_we_leave(asked: Asked) -> None:
    want = asked(out={"chat/a": Health.UNHEALTHY})
    entries: dict[tuple[str, str], Any] = {key: one.body() for key, one in want.entries.items()}
    exported = entries["models", "chat.a"]
    exported["metadata"]["labels"][MANAGED_LABEL] = "switchgear"
    exported["spec"]["labels"] = {SERVING_LABEL: "true", "theirs": "x"}
    assert write_plan(want, {}, entries) == (ApplyEntry(entry=want.entries["models", "chat.a"], whole=False),)
    adjusted = want.entries["models", "chat.a"].adjustment()
    assert adjusted["spec"] == {"labels": {SERVING_LABEL: "false"}}
    exported["spec"]["labels"][SERVING_LABEL] = "false"
    assert write_plan(want, {}, entries) == ()
    leaving = write_plan(NOTHING_DESIRED, {}, entries)
    assert leaving[0] == RestoreEntry(namespace="models", name="chat.a")
    assert RemoveEntry(namespace="models", name="chat.a") not in leaving
    exported["spec"]["labels"][SERVING_LABEL] = "true"
    assert RestoreEntry(namespace="models", name="chat.a") not in write_plan(NOTHING_DESIRED, {}, entries)


def test_a_weight_that_is_not_wanted_any_more_is_written_away(asked: Asked) -> None:
    entries = {key: one.body() for key, one in asked(trial={"chat/b": 25.0}).entries.items()}
    writes = write_plan(asked(), {}, entries)
    assert {one.entry.engine for one in writes if isinstance(one, ApplyEntry)} == {"a", "b", "c"}


@given(
    st.dictionaries(
        st.sampled_from(["p0", "p1", "p2", "p3"]),
        st.tuples(st.booleans(), st.sampled_from([None, "true", "false"])),
    ),
    st.dictionaries(st.sampled_from(["e0", "e1", "e2"]), st.tuples(st.booleans(), st.booleans())),
)
def test_after_the_writes_nothing_is_left_to_write(
    some_pods: dict[str, tuple[bool, str | None]], some_entries: dict[str, tuple[bool, bool]]
) -> None:
    marks = {
        ("models", name): PodServingLabel(
            namespace="models", name=name, uid=f"uid-{name}", serving=serving, reason="r"
        )
        for name, (serving, _) in some_pods.items()
    }
    wanted_entries = {
        ("models", name): DesiredWorkloadEntry(
            namespace="models",
            name=name,
            pool="p",
            engine=name,
            address="127.0.0.1",
            port=1,
            locality="",
            weight=0,
            serving=serving,
            reason="r",
        )
        for name, (serving, _) in some_entries.items()
    }
    want = DesiredState(pods=marks, entries=wanted_entries)
    pods: dict[tuple[str, str], Any] = {
        ("models", name): a_pod(name, label) for name, (_, label) in some_pods.items()
    }
    pods["models", "stray"] = a_pod("stray", "true")
    entries: dict[tuple[str, str], Any] = {
        key: one.body() for key, one in wanted_entries.items() if some_entries[key[1]][1]
    }
    for write in write_plan(want, pods, entries):
        match write:
            case MarkPod(mark=mark):
                pods[mark.namespace, mark.name]["metadata"]["labels"][SERVING_LABEL] = (
                    "true" if mark.serving else "false"
                )
            case UnmarkPod(namespace=namespace, name=name):
                del pods[namespace, name]["metadata"]["labels"][SERVING_LABEL]
            case ApplyEntry(entry=entry):
                entries[entry.namespace, entry.name] = entry.body()
            case RestoreEntry():
                raise AssertionError("nothing was exported")
            case RemoveEntry(namespace=namespace, name=name):
                del entries[namespace, name]
    assert write_plan(want, pods, entries) == ()


def test_engine_that_is_out_stays_out_until_there_is_evidence(asked: Asked) -> None:
    found = {"pods": {"chat/a": pod("a-0")}}
    out = asked(out={"chat/a": Health.UNHEALTHY, "chat/b": Health.UNHEALTHY}, **found)
    pods = {("models", "a-0"): a_pod("a-0", "false")}
    entries = {key: one.body() for key, one in out.entries.items()}
    assert write_plan(asked(unproven=["chat/a", "chat/b"], **found), pods, entries) == ()
    returned = [write_text(one) for one in write_plan(asked(**found), pods, entries)]
    assert returned == ["pod models/a-0 serves", "workload entry models/chat.b serves"]


def test_new_engine_serves_without_evidence(asked: Asked) -> None:
    want = asked(pods={"chat/a": pod("a-0")}, unproven=["chat/a", "chat/b", "chat/c", "other/a"])
    assert len(write_plan(want, {("models", "a-0"): a_pod("a-0", None)}, {})) == 4


def test_pod_of_two_pools_returns_by_the_evidence_of_one(asked: Asked) -> None:
    pods = {"chat/a": pod("a-0"), "other/a": pod("a-0")}
    assert asked(pods=pods, unproven=["chat/a"]).pods["models", "a-0"].proven
    assert asked(pods=pods, unproven=["other/a"]).pods["models", "a-0"].proven
    assert not asked(pods=pods, unproven=["chat/a", "other/a"]).pods["models", "a-0"].proven
