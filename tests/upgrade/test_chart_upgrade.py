"""Upgrade and rollback of the chart, rehearsed: the recorded chart and today's, rendered with the same values.

``helm upgrade`` and ``helm rollback`` both apply the difference of two renderings. An API server refuses a
change of an immutable field. A renamed object is deleted and created, which ends its traffic meanwhile.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from deploy import render
from tests.deploy import helm_rendering
from tests.deploy.helm_rendering import Document

RECORDED = sorted((render.ROOT / "tests" / "data" / "recorded" / "chart").glob("switchgear-*.tgz"))
SINCE = {"routes", "production"}
"""Value sets with values that a recorded chart does not know."""

Key = tuple[str, str, str]


def _by_name(text: str) -> Mapping[Key, Document]:
    return {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one
        for one in helm_rendering.parsed(text)
    }


def _immutable(one: Document) -> Iterator[tuple[str, Any]]:
    """Fields of an object that an API server refuses to change."""
    spec = one.get("spec", {})
    match one["kind"]:
        case "Deployment":
            yield "spec.selector", spec["selector"]
        case "Service":
            yield "spec.clusterIP", spec.get("clusterIP")
        case "RoleBinding" | "ClusterRoleBinding":
            yield "roleRef", one["roleRef"]


def _changes(old: Mapping[Key, Document], new: Mapping[Key, Document]) -> Iterator[str]:
    """What of the change from ``old`` to ``new`` would be refused, or replaces an object that stays in both."""
    for key in old.keys() & new.keys():
        before, after = dict(_immutable(old[key])), dict(_immutable(new[key]))
        for field, value in before.items():
            if after[field] != value:
                yield f"{key[0]} {key[2]}: {field} is immutable, and changes"


@pytest.fixture(params=RECORDED, ids=lambda path: path.name)
def recorded(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("values", [one for one in helm_rendering.VALUE_SETS if one not in SINCE])
def test_upgrade_and_rollback_of_the_chart_are_accepted(recorded: str, values: str) -> None:
    rendered = render.helm(
        "template", render.RELEASE, recorded, "--namespace", render.NAMESPACE, "--kube-version", render.KUBERNETES,
        "--values", str(render.values_file(values)), "--skip-tests",
    )  # fmt: skip
    assert rendered.returncode == 0, rendered.stderr
    today = render.template(render.values_file(values), "--skip-tests")
    assert today.returncode == 0, f"values of the recorded chart are refused: {today.stderr}"
    old, new = _by_name(rendered.stdout), _by_name(today.stdout)
    gone = sorted(old.keys() - new.keys())
    assert not gone, f"an upgrade deletes objects: {gone}"
    assert list(_changes(old, new)) == []
    assert list(_changes(new, old)) == []


@pytest.mark.parametrize("values", ["default", "engines"])
def test_renamed_release_and_changed_selector_are_found(values: str) -> None:
    now = _by_name(render.template(render.values_file(values)).stdout)
    named = _by_name(render.template(render.values_file(values), "--set", "nameOverride=other").stdout)
    assert now.keys() - named.keys()
    deployments = [key for key in now if key[0] == "Deployment"]
    changed = {
        key: {**now[key], "spec": {**now[key]["spec"], "selector": {"matchLabels": {"app": "other"}}}}
        for key in deployments
    }
    assert len(list(_changes(now, changed))) == len(deployments)
