"""Both versions of policy documents mean the same, in files that may mix them."""

from pathlib import Path

import pytest

from chaos.scenario.scenario_reader import read_scenarios
from policies.document import API_VERSION, API_VERSIONS, NEWEST_API_VERSION
from policies.findings import PolicyErrors
from policies.lints.lint import lint
from policies.load import load
from policies.model import PolicySet
from policies.schema import json_schema
from xds_server.auth.rules_file import read_access

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "policies" / "examples" / "three-zones.yaml").read_text()


def loaded(folder: Path, text: str) -> PolicySet:
    (folder / "policy.yaml").write_text(text)
    return load([folder])


def newest(text: str) -> str:
    return text.replace(API_VERSION, NEWEST_API_VERSION)


def test_versions_are_the_stored_one_and_the_newest() -> None:
    assert (API_VERSION, NEWEST_API_VERSION) == ("switchgear.dev/v1alpha1", "switchgear.dev/v1beta1")
    assert API_VERSIONS == (API_VERSION, NEWEST_API_VERSION)


def test_either_version_gives_equal_policies(tmp_path: Path) -> None:
    older = loaded(tmp_path, EXAMPLE)
    newer = loaded(tmp_path, newest(EXAMPLE))
    # The digest tells servers whether content changed, and proxies of replicas whether they agree.
    assert newer.digest == older.digest
    assert (newer.pools, newer.routes, newer.policies) == (older.pools, older.routes, older.policies)
    assert newer.effective == older.effective
    assert {one.api_version for one in newer.pools.values()} == {API_VERSION}


def test_versions_mix_in_a_file_and_the_older_is_noted_once(tmp_path: Path) -> None:
    mixed = EXAMPLE.replace(API_VERSION, NEWEST_API_VERSION, 1)
    policies = loaded(tmp_path, mixed)
    (note,) = policies.notes
    line = next(n for n, text in enumerate(mixed.splitlines(), 1) if text == f"apiVersion: {API_VERSION}")
    assert (note.code, str(note.origin)) == ("SG199", f"{tmp_path / 'policy.yaml'}:{line}:13")
    assert note.message == f"2 of 3 documents use {API_VERSION}, which is deprecated"
    assert "SG199" not in {one.code for one in lint(policies)}
    assert loaded(tmp_path, newest(EXAMPLE)).notes == ()


def test_other_versions_are_refused_with_both(tmp_path: Path) -> None:
    with pytest.raises(PolicyErrors) as caught:
        loaded(tmp_path, EXAMPLE.replace(API_VERSION, "switchgear.dev/v1beta2", 1))
    (error,) = caught.value.exceptions
    assert getattr(error, "code", "") == "SG021"
    assert getattr(error, "allowed", "") == f"one of {API_VERSION}, {NEWEST_API_VERSION}"
    assert getattr(error, "hint", "") == f"did you mean {NEWEST_API_VERSION}?"


def test_the_json_schema_has_both() -> None:
    for kind in ("EnginePool", "ModelRoute", "ResiliencePolicy"):
        assert json_schema(kind)["properties"]["apiVersion"]["enum"] == list(API_VERSIONS)


def test_access_rules_and_scenarios_may_use_either(tmp_path: Path) -> None:
    rules, scenario = tmp_path / "rules.yaml", tmp_path / "scenario.yaml"
    text = f"apiVersion: {API_VERSION}\nkind: Access\nmetadata: {{name: a}}\nspec: {{proxies: []}}\n"
    found = []
    for one in (text, newest(text)):
        rules.write_text(one)
        found.append(read_access(rules))
    assert found[0] == found[1]
    told = (ROOT / "chaos" / "scenarios" / "quick.yaml").read_text()
    assert API_VERSION in told
    read = []
    for one in (told, newest(told)):
        scenario.write_text(one)
        read.append(read_scenarios([scenario])[0].scenario)
    assert read[0] == read[1]
