"""The effects of an edit: fields, resources, figures, and scope."""

from pathlib import Path

import pytest

from policies.load import load_contents
from policies.model import PolicySet
from xds_server.model.view import View
from xds_server.rollout.history.impact import Impact, ResourceChange
from xds_server.rollout.history.policy_diff import PolicyDiff, policy_diff

POOL = """
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: {name}}}
spec:
  model: m
  slotsPerEngine: 4
  endpoints:
    - {{name: e1, address: 10.0.0.1, port: 8000, zone: z1}}
    - {{name: e2, address: 10.0.0.2, port: 8000, zone: z2}}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: {name}}}
spec: {{listener: {{port: {port}}}, pools: [{{pool: {name}}}]}}
"""
DEFAULT = """
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {name: default}
spec:
  retries: {attempts: 2}
  limits: {maxWait: 2s}
"""


def policies(text: str, file: str = "p.yaml") -> PolicySet:
    return load_contents({Path(file): text.encode()})


CHAT = POOL.format(name="chat", port=10000)
CODE = POOL.format(name="code", port=10001)
OLD = CHAT + "---" + CODE + "---" + DEFAULT


def edited(*pairs: tuple[str, str]) -> PolicyDiff:
    text = OLD
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    return policy_diff(policies(OLD), policies(text, "new.yaml"))


def effects(found: PolicyDiff) -> set[tuple[str, str, ResourceChange, Impact]]:
    return {(one.type, one.name, one.how, one.heat) for view in found.views for one in view.effects}


def test_comments_order_and_file_names_make_no_difference() -> None:
    text = "# another comment\n" + DEFAULT + "---" + CODE + "---" + CHAT
    found = policy_diff(policies(OLD), policies(text, "elsewhere.yaml"))
    assert found.same
    assert not found.blast.pools


def test_changed_field_has_both_values_and_its_line() -> None:
    found = edited(("maxWait: 2s", "maxWait: 5s"))
    (one,) = found.fields
    assert (one.document, one.path, one.old, one.new) == (
        "ResiliencePolicy/default",
        "spec.limits.maxWait",
        '"2s"',
        '"5s"',
    )
    line = next(n for n, text in enumerate(OLD.splitlines(), 1) if "maxWait" in text)
    assert one.place.startswith(f"new.yaml:{line}:")


def test_removed_field_has_its_old_line() -> None:
    found = edited(("  limits: {maxWait: 2s}\n", ""))
    (one,) = found.fields
    assert (one.old, one.new) == ('"2s"', None)
    assert one.place.startswith("p.yaml:")


def test_added_engine_is_one_named_change() -> None:
    line = "    - {name: e1, address: 10.0.0.1, port: 8000, zone: z1}\n"
    found = edited((line, line.replace("e1", "e0").replace("0.1,", "0.9,") + line))
    (one,) = found.fields
    assert (one.path, one.old, one.new) == ("spec.endpoints[e0]", None, "there")
    assert ("EDS", "chat", ResourceChange.CHANGED, Impact.HOT) in effects(found)
    (pool,) = found.pools
    assert pool.before is not None
    assert pool.after is not None
    assert (pool.before.engines, pool.after.engines) == (2, 3)
    assert (pool.before.slots, pool.after.slots) == (8, 12)
    assert found.blast.pools == ("chat",)
    assert found.blast.routes == ("chat",)


def test_listener_change_is_cold_and_retry_change_is_hot() -> None:
    moved = edited(("port: 10000", "port: 10009"))
    assert ("LDS", "port-10000", ResourceChange.REMOVED, Impact.COLD) in effects(moved)
    assert ("LDS", "port-10009", ResourceChange.ADDED, Impact.HOT) in effects(moved)
    assert moved.cold == 1
    tries = edited(("attempts: 2", "attempts: 1"))
    assert {how for kind, _, how, heat in effects(tries) if kind == "RDS" and heat is Impact.HOT} == {
        ResourceChange.CHANGED
    }
    assert tries.cold == 0
    assert [(one.before.tries, one.after.tries) for one in tries.pools if one.before and one.after] == [(3, 2)] * 2


def test_cluster_change_is_cold_without_its_endpoints() -> None:
    found = edited(("  limits: {maxWait: 2s}", "  limits: {maxWait: 2s}\n  timeouts: {connect: 900ms}"))
    assert {(kind, heat) for kind, _, _, heat in effects(found)} == {("CDS", Impact.COLD)}
    assert found.cold == 2


def test_removed_document_removes_its_resources() -> None:
    found = policy_diff(policies(OLD), policies(CHAT + "---" + DEFAULT))
    assert {one.document for one in found.fields} == {"EnginePool/code", "ModelRoute/code"}
    assert ("CDS", "code", ResourceChange.REMOVED, Impact.COLD) in effects(found)
    assert found.blast.pools == ("code",)


@pytest.mark.parametrize(("pool", "reached", "percent"), [("chat", 3, 75.0), ("code", 2, 25.0)])
def test_change_scope_has_proxies_and_traffic(pool: str, reached: int, percent: float) -> None:
    views = {
        View(zone="z1"): 1,
        View(zone="z1", role="sidecar", pools=frozenset({"chat"})): 2,
        View(zone="z2", role="sidecar", pools=frozenset({"code"})): 1,
    }
    place = f"metadata: {{name: {pool}}}\nspec:\n  model: m\n  slotsPerEngine: 4"
    text = OLD.replace(place, place.replace("slotsPerEngine: 4", "slotsPerEngine: 8"))
    assert text != OLD
    found = policy_diff(policies(OLD), policies(text), views=views, arrivals_per_s={"chat": 30.0, "code": 10.0})
    assert found.blast.proxies == (reached, 4)
    assert found.blast.traffic_percent == percent
    assert {name for view in found.views for name in view.views} != {"gateway"}
