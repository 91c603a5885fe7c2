"""The definitions for a cluster say what the loader says, as far as a definition can; never more.

The double's validation stands in for the API server's: schema, pruning, and rules.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import event, given, settings
from hypothesis import strategies as st
from kubernetes_validate import validate

from policies.crd.crd import PLURALS, crd
from policies.crd.structural_schema import blocks
from policies.load import validate_content
from policies.model import KINDS
from policies.quantity import DURATION_PATTERN
from policies.relations import LocatedDocument, reference_contradictions
from policies.schema import Schema
from tests.cluster_double import rules
from tests.cluster_double.structural import pruned, unknown, wrong
from xds_server.cli.schema import command, definition
from xds_server.k8s.api_resources import POLICY_RESOURCES

ROOT = Path(__file__).parents[2]
EXAMPLES = [*sorted((ROOT / "policies" / "examples").glob("*.yaml")), ROOT / "policies" / "default.yaml"]

# https://kubernetes.io/docs: one rule, and all rules of a definition, by the worst that the API server can expect.
PER_RULE, ALL_RULES = 10_000_000, 100_000_000
LONGEST_TEXT = 3 * 1024 * 1024 // 10
"""What reading a text of unlimited length costs at most: a tenth of a request's largest size."""


@cache
def document_schema(kind: str) -> Schema:
    schema: Schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def refusals(document: dict[str, Any]) -> list[str]:
    """Why a cluster refuses a document, with strict field validation."""
    schema = document_schema(document["kind"])
    kept = pruned(schema, document)
    found = [f"unknown {one}" for one in unknown(document, kept)]
    found += [str(one) for one in wrong(schema, kept)]
    return found or [str(one) for one in rules.broken(schema, kept, None)]


def loader_says(document: dict[str, Any]) -> set[tuple[str, str]]:
    """Code and path of every problem of one document, whatever others say."""
    file = validate_content(json.dumps(document).encode())
    said = {(one.code, one.path) for one in file.problems}
    if not said:
        placed = [LocatedDocument(file="a.yaml", document=one) for one in file.documents]
        said = {(one.code, one.path) for one in reference_contradictions(placed, complete=False)}
    return said


def document(kind: str, spec: dict[str, Any], name: str = "chat") -> dict[str, Any]:
    return {"apiVersion": "switchgear.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def test_cel_rules_are_evaluated_here() -> None:
    assert rules.asked(), (
        "the CEL interpreter of the dev dependencies is missing, so these tests would see nothing"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_definition_is_one(kind: str) -> None:
    validate(crd(kind), "1.37", strict=True)


@pytest.mark.parametrize("kind", KINDS)
def test_definition_is_served_where_the_control_plane_looks(kind: str) -> None:
    said, known = crd(kind)["spec"], POLICY_RESOURCES[kind]
    assert (said["group"], said["versions"][0]["name"], said["names"]["plural"]) == (
        known.group,
        known.version,
        known.plural,
    )
    assert "ep" not in said["names"]["shortNames"]  # endpoints


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_those_of_the_models(kind: str) -> None:
    path = ROOT / "deploy" / "crds" / f"{PLURALS[kind]}.yaml"
    assert path.read_text() == definition(kind), "run: switchgear schema --crd --out deploy/crds"


def test_command_prints_what_the_files_hold() -> None:
    files = [ROOT / "deploy" / "crds" / f"{PLURALS[kind]}.yaml" for kind in KINDS]
    printed = CliRunner().invoke(command, ["--crd"], standalone_mode=False)
    assert printed.exit_code == 0
    assert [one for one in yaml.safe_load_all(printed.output) if one] == [
        yaml.safe_load(one.read_text()) for one in files
    ]


def test_command_writes_a_file_for_each_kind(tmp_path: Path) -> None:
    into = tmp_path / "new" / "crds"
    assert CliRunner().invoke(command, ["--crd", "--out", str(into)], standalone_mode=False).exit_code == 0
    assert {one.name: one.read_text() for one in into.iterdir()} == {
        f"{PLURALS[kind]}.yaml": definition(kind) for kind in KINDS
    }
    assert CliRunner().invoke(command, ["--api", "--crd", "--out", str(into)]).exit_code == 2


@pytest.mark.parametrize("kind", KINDS)
def test_schema_is_structural(kind: str) -> None:
    forbidden = {
        "$ref",
        "definitions",
        "oneOf",
        "anyOf",
        "allOf",
        "not",
        "uniqueItems",
        "const",
        "default",
        "title",
    }
    for path, said in blocks(document_schema(kind)):
        assert not forbidden & said.keys(), path
        assert ("type" in said) is not bool(said.get("x-kubernetes-int-or-string")), path
        assert not ("properties" in said and "additionalProperties" in said), path
        # Null is checked against the enum, and refused.
        assert not (said.get("nullable") and "enum" in said), path
        for word in ("exclusiveMinimum", "exclusiveMaximum"):
            assert isinstance(said.get(word, False), bool), path
        keys = said.get("x-kubernetes-list-map-keys", ())
        assert set(keys) <= set((said.get("items") or {}).get("required", ())), path


@pytest.mark.parametrize("kind", KINDS)
def test_cel_rule_cost_is_within_the_api_server_budget(kind: str) -> None:
    """Each call and each operator as dear as reading the longest text, times the items of the lists around it."""
    schema = document_schema(kind)
    most = {f"{path}[]": said["maxItems"] for path, said in blocks(schema) if "maxItems" in said}
    total = 0
    for path, said in blocks(schema):
        times = 1
        for inside, items in most.items():
            times *= items if path.startswith(inside) else 1
        for rule in said.get("x-kubernetes-validations", ()):
            calls = len(re.findall(r"duration\(self|duration\(has", rule["rule"]))
            steps = len(re.findall(r"[a-z]\(|&&|\|\||[<>=!?+]=?|\.", rule["rule"]))
            loops = said["properties"]["pools"]["maxItems"] if ".exists(" in rule["rule"] else 1
            cost = times * (calls * LONGEST_TEXT + steps * loops)
            assert cost <= PER_RULE, (path, rule["rule"])
            total += cost
    assert total <= ALL_RULES


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_compiles_and_says_why(kind: str) -> None:
    for path, said in blocks(document_schema(kind)):
        for rule in said.get("x-kubernetes-validations", ()):
            cel.compile(rule["rule"])
            assert rule["message"], path
            if inner := rule.get("fieldPath"):
                place: Any = said
                for step in inner.strip(".").split("."):
                    place = place["properties"][step]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_accepted_as_they_are(path: Path) -> None:
    documents = [one for one in yaml.safe_load_all(path.read_text()) if one]
    assert documents
    for one in documents:
        assert not refusals(one), f"{one['kind']} {one['metadata']['name']}"


ENGINES = [{"address": "10.0.0.1", "port": 8000}, {"address": "10.0.0.2", "port": 8000}]
ROUTE = {"listener": {"port": 80}, "pools": [{"pool": "chat"}]}
ALIKE: list[tuple[str, str, dict[str, Any], str]] = [
    ("SG024", "EnginePool", {"endpoints": ENGINES}, "chat"),
    ("SG024", "EnginePool", {"model": "m", "endpoints": [{"address": "10.0.0.1"}]}, "chat"),
    ("SG023", "EnginePool", {"model": "m", "endpionts": []}, "chat"),
    ("SG025", "EnginePool", {"model": 7}, "chat"),
    ("SG026", "EnginePool", {"model": "m", "slotsPerEngine": 0}, "chat"),
    ("SG026", "EnginePool", {"model": "m", "endpoints": [{"address": "h", "port": 1, "weight": 129}]}, "chat"),
    ("SG026", "EnginePool", {"model": "m"}, "-chat"),
    ("SG027", "EnginePool", {"model": "m", "serviceTime": "2"}, "chat"),
    ("SG026", "EnginePool", {"model": "m", "probe": {"interval": "49ms"}}, "chat"),
    ("SG026", "EnginePool", {"model": "m", "probe": {"interval": "1m0.001s"}}, "chat"),
    ("SG027", "EnginePool", {"model": "m", "probe": {"interval": "99999h"}}, "chat"),
    ("SG035", "EnginePool", {"model": "m", "endpoints": [*ENGINES, ENGINES[0]]}, "chat"),
    ("SG040", "EnginePool", {"model": "m", "longestServiceTime": "1s"}, "chat"),
    ("SG040", "EnginePool", {"model": "m", "serviceTime": "5m", "longestServiceTime": "4m59s"}, "chat"),
    ("SG040", "EnginePool", {"model": "m", "kubernetes": {"port": 80}}, "chat"),
    (
        "SG040",
        "EnginePool",
        {"model": "m", "kubernetes": {"port": 80, "service": "a", "selector": {"a": "b"}}},
        "c",
    ),
    ("SG026", "EnginePool", {"model": "m", "kubernetes": {"port": 65536, "service": "a"}}, "chat"),
    ("SG024", "ModelRoute", {"pools": [{"pool": "a"}]}, "front"),
    ("SG026", "ModelRoute", {**ROUTE, "pools": []}, "front"),
    ("SG038", "ModelRoute", {**ROUTE, "pools": [{"pool": "a", "weight": 0}]}, "front"),
    ("SG039", "ModelRoute", {**ROUTE, "pools": [{"pool": "a"}, {"pool": "a"}]}, "front"),
    ("SG039", "ModelRoute", {**ROUTE, "fallbacks": ["b", "c", "b"]}, "front"),
    ("SG039", "ModelRoute", {**ROUTE, "fallbacks": ["b", ROUTE["pools"][0]["pool"]]}, "front"),
    ("SG026", "ModelRoute", {**ROUTE, "fallbacks": [f"p{number}" for number in range(9)]}, "front"),
    ("SG025", "ModelRoute", {**ROUTE, "fallbacks": "b"}, "front"),
    ("SG040", "ModelRoute", {**ROUTE, "match": {"headers": [{"name": "x", "exact": "1", "present": True}]}}, "f"),
    ("SG026", "ModelRoute", {**ROUTE, "priority": "urgent"}, "front"),
    ("SG026", "ModelRoute", {**ROUTE, "match": {"headers": [{"name": "x y"}]}}, "front"),
    ("SG033", "ResiliencePolicy", {}, "strict"),
    ("SG033", "ResiliencePolicy", {"pools": []}, "strict"),
    ("SG034", "ResiliencePolicy", {"pools": ["a"]}, "default"),
    ("SG039", "ResiliencePolicy", {"pools": ["a", "a"]}, "strict"),
    ("SG041", "ResiliencePolicy", {"retries": {"backoff": {"base": "1s", "max": "999ms"}}}, "default"),
    ("SG041", "ResiliencePolicy", {"breaker": {"cooldown": "2h", "maxCooldown": "1h"}}, "default"),
    (
        "SG041",
        "ResiliencePolicy",
        {"breaker": {"errorRatePercent": 1, "minCalls": 9, "windowCalls": 8}},
        "default",
    ),
    ("SG026", "ResiliencePolicy", {"hedging": {"delayQuantilePercent": 100}}, "default"),
    ("SG026", "ResiliencePolicy", {"hedging": {"delay": "0ms"}}, "default"),
    ("SG026", "ResiliencePolicy", {"hedging": {"mode": "maybe"}}, "default"),
    ("SG025", "ResiliencePolicy", {"retries": {"attempts": None}}, "default"),
]


@pytest.mark.parametrize(("code", "kind", "spec", "name"), ALIKE, ids=lambda one: str(one)[:40])
def test_cluster_refuses_what_the_loader_refuses(code: str, kind: str, spec: dict[str, Any], name: str) -> None:
    said = document(kind, spec, name)
    assert code in {one for one, _ in loader_says(said)}
    assert refusals(said)


ALLOWED: list[tuple[str, dict[str, Any], str]] = [
    (
        "EnginePool",
        {"model": "m", "endpoints": [{**ENGINES[0], "name": "", "slots": None, "agentPort": None}]},
        "a",
    ),
    ("EnginePool", {"model": "m", "endpoints": [{**ENGINES[0], "name": None}]}, "a"),
    ("EnginePool", {"model": "m", "kubernetes": {"port": "http", "service": None, "selector": {"a": "b"}}}, "a"),
    ("EnginePool", {"model": "m", "longestServiceTime": "2s"}, "a"),
    # Only the policy that is laid over this one says how long the longest is.
    ("ResiliencePolicy", {"breaker": {"cooldown": "10m"}}, "default"),
    ("ResiliencePolicy", {"breaker": {"errorRatePercent": 0, "minCalls": 9, "windowCalls": 8}}, "default"),
    ("ResiliencePolicy", {"mode": "shadow", "hedging": {"mode": None, "delay": None}}, "default"),
    (
        "ModelRoute",
        {"listener": {"port": 80}, "pools": [{"pool": "a"}, {"pool": "b", "weight": 0}], "fallbacks": ["b", "c"]},
        "front",
    ),
    ("ModelRoute", {**ROUTE, "fallbacks": [], "match": {"headers": [{"name": "x-$a", "exact": None}]}}, "front"),
]


@pytest.mark.parametrize(("kind", "spec", "name"), ALLOWED, ids=lambda one: str(one)[:40])
def test_cluster_accepts_every_way_to_say_nothing(kind: str, spec: dict[str, Any], name: str) -> None:
    said = document(kind, spec, name)
    assert not loader_says(said)
    assert not refusals(said)


def test_policy_named_default_may_have_no_spec() -> None:
    said = {key: one for key, one in document("ResiliencePolicy", {}, "default").items() if key != "spec"}
    assert not loader_says(said)
    assert not refusals(said)
    said["metadata"] = {"name": "strict"}
    assert {code for code, _ in loader_says(said)} == {"SG033"}
    assert refusals(said)


# What only Switchgear judges: whether a text is an address, a name in a certificate or an expression, whether a
# port's name is a number, and names that are given to two engines.
ONLY_OURS = ("address", "regex", "port", "agentPort", "name", "header", "serverName", "subjectAltNames")
CLAIMED = {"SG023", "SG024", "SG025", "SG026", "SG027", "SG033", "SG034", "SG038", "SG039", "SG040", "SG041"}
COMPARED_WITH = {"windowCalls": "minCalls", "maxCooldown": "cooldown", "max": "base"}
DURATIONS = [
    "0s",
    "0.0ms",
    "1ms",
    "50ms",
    "99ms",
    "100ms",
    "1s",
    "90s",
    "1m30s",
    "1.5h",
    "24h",
    "87600h",
    "87601h",
]
TEXTS = [
    "a",
    "a-b",
    "A.b",
    "us-east-1",
    "10.0.0.1",
    "fd00::7",
    "/",
    "/v1/a",
    "x-y",
    "0.0.0.0",
    "llama 3",
    "",
    "-",
    "é",
]


@st.composite
def values(draw: st.DrawFn, schema: Schema) -> Any:  # noqa: PLR0911 - one line per kind of value
    """A value that mostly fits a schema: at its bounds, and now and then beyond them or of another type."""
    odd = draw(st.integers(0, 60))
    if odd == 0:
        return draw(st.sampled_from([None, 0, 1.5, "", "a", True, [], {}]))
    if schema.get("nullable") and odd < 8:
        return None
    if "enum" in schema:
        return draw(st.sampled_from([*schema["enum"], *schema["enum"], "other"]))
    if schema.get("x-kubernetes-int-or-string"):
        return draw(st.sampled_from([1, 80, 65535, "http", "a-b", 0, 65536, "A"]))
    match schema["type"]:
        case "object":
            return draw(objects(schema))
        case "array":
            return draw(st.lists(values(schema["items"]), min_size=schema.get("minItems", 0), max_size=3))
        case "boolean":
            return draw(st.booleans())
        case "integer" | "number":
            return draw(numbers(schema))
        case _:
            return draw(texts(schema))


@st.composite
def objects(draw: st.DrawFn, schema: Schema) -> dict[str, Any]:
    if "properties" not in schema:
        return draw(
            st.dictionaries(st.sampled_from(["a", "b"]), values(schema["additionalProperties"]), max_size=2)
        )
    required = set(schema.get("required", ()))
    chosen = draw(st.sets(st.sampled_from(sorted(schema["properties"])), max_size=4)) | required
    if draw(st.integers(0, 40)) == 0:
        chosen = chosen - required
    found = {name: draw(values(schema["properties"][name])) for name in sorted(chosen)}
    if draw(st.integers(0, 40)) == 0:
        found["nobody"] = 1
    return found


def numbers(schema: Schema) -> st.SearchStrategy[Any]:
    low, high = schema.get("minimum", 0), schema.get("maximum", 1000)
    fit = [low + (1 if schema.get("exclusiveMinimum") else 0), high - (1 if schema.get("exclusiveMaximum") else 0)]
    return st.sampled_from([*fit * 4, low - 1, high + 1, high])


def texts(schema: Schema) -> st.SearchStrategy[str]:
    pattern = schema.get("pattern", "")
    if pattern == DURATION_PATTERN:
        return st.sampled_from([*DURATIONS, "5", "-1s", "1 s"])
    if pattern.startswith("^("):
        return st.sampled_from([*pattern[2:-2].split("|"), "other"])
    fit = [one for one in TEXTS if re.search(pattern, one) and len(one) >= schema.get("minLength", 0)]
    return st.sampled_from(fit * 4 + TEXTS)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(sorted(KINDS)))
    schema = document_schema(kind)["properties"]["spec"]
    return document(kind, draw(objects(schema)), draw(st.sampled_from(["chat", "default"])))


def judged_by_cluster(code: str, path: str, said: dict[str, Any]) -> bool:
    """Whether a cluster refuses this, too. It compares only fields that are written: others may be layered."""
    within, _, name = path.rpartition(".")
    if code == "SG041" and name in COMPARED_WITH:
        at = said
        for step in within.split("."):
            at = at[step]
        return COMPARED_WITH[name] in at
    return code in CLAIMED and name.partition("[")[0] not in ONLY_OURS


@settings(max_examples=300)
@given(said=documents())
def test_cluster_and_loader_agree(said: dict[str, Any]) -> None:
    problems, refused = loader_says(said), refusals(said)
    if not problems:
        event("accepted by the loader")
        assert not refused
    elif all(judged_by_cluster(code, path, said) for code, path in problems):
        event("refused by the loader for what a cluster judges too")
        assert refused, problems


def test_schema_has_no_defaults() -> None:
    for kind in KINDS:
        assert not [path for path, said in blocks(document_schema(kind)) if "default" in said]


@pytest.mark.parametrize("kind", KINDS)
def test_duration_bounds_come_from_the_models(kind: str) -> None:
    """Every duration has a rule, and what its rule allows at both ends the loader allows."""
    found = [
        (path, said) for path, said in blocks(document_schema(kind)) if said.get("pattern") == DURATION_PATTERN
    ]
    for path, said in found:
        rule, message = (said["x-kubernetes-validations"][0][key] for key in ("rule", "message"))
        for bound in re.findall(r"(?:at least|at most) (\S+?)(?:,|$)", message):
            assert bound == "0s" or f"duration('{bound}')" in rule, path
    assert found or kind == "ModelRoute"


@pytest.mark.parametrize("kind", KINDS)
def test_versions_have_one_schema_so_that_conversion_needs_no_webhook(kind: str) -> None:
    spec = crd(kind)["spec"]
    assert spec["conversion"] == {"strategy": "None"}
    older, newer = (dict(version) for version in spec["versions"])
    assert (older.pop("name"), older.pop("storage")) == ("v1alpha1", True)
    assert (newer.pop("name"), newer.pop("storage")) == ("v1beta1", False)
    assert older == newer
