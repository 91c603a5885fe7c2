"""The JSON Schema says what the loader says, as far as a schema can."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from policies.model import KINDS
from policies.schema import fields, json_schema
from policies.validated_document import validate_policy
from policies.yaml_text import parse

EXAMPLES = sorted((Path(__file__).parents[2] / "policies" / "examples").glob("*.yaml"))
TYPES = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip


def accepts(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """The part of JSON Schema that the schema uses."""
    if "$ref" in schema:
        return accepts(root["$defs"][schema["$ref"].rpartition("/")[2]], value, root)
    kind = TYPES.get(schema.get("type", ""), object)
    return (
        isinstance(value, kind)
        and not (isinstance(value, bool) and schema.get("type") in {"integer", "number"})
        and value == schema.get("const", value)
        and value in schema.get("enum", (value,))
        and ("anyOf" not in schema or any(accepts(one, value, root) for one in schema["anyOf"]))
        and ("oneOf" not in schema or sum(accepts(one, value, root) for one in schema["oneOf"]) == 1)
        and inside(schema, value, root)
    )


def inside(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    match value:
        case dict():
            known, extra = schema.get("properties", {}), schema.get("additionalProperties", True)
            rest = extra if isinstance(extra, dict) else {}
            return (
                set(schema.get("required", ())) <= set(value)
                and (extra is not False or set(value) <= set(known))
                and all(accepts(known.get(name, rest), one, root) for name, one in value.items())
            )
        case list():
            return all(accepts(schema.get("items", {}), one, root) for one in value)
        case str():
            return re.search(schema.get("pattern", ""), value) is not None
        case int() | float():
            return schema.get("minimum", value) <= value <= schema.get("maximum", value)
        case _:
            return True


def documents(text: str) -> list[Any]:
    return [one.value for one in parse(text).documents]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_schema_accepts_the_examples(path: Path) -> None:
    for document in documents(path.read_text()):
        assert accepts(json_schema(), document, json_schema())
        assert accepts(json_schema(document["kind"]), document, json_schema(document["kind"]))


@pytest.mark.parametrize(
    "spec",
    [
        "{pools: [chat], limits: {max_wait: 2s}}", "{pools: [chat], limits: {maxWait: 2}}",
        "{pools: [chat], limits: {maxWait: soon}}", "{pools: [chat], retries: {attempts: 99}}",
        "{pools: [chat], retries: {attempts: '1'}}", "{pools: [chat], retries: {conditions: [never]}}",
        "{pools: [Chat]}", "{pools: chat}", "[]",
    ],
)  # fmt: skip
def test_the_schema_and_the_loader_refuse_the_same(spec: str) -> None:
    text = f"apiVersion: switchgear.dev/v1alpha1\nkind: ResiliencePolicy\nmetadata: {{name: a}}\nspec: {spec}\n"
    parsed = parse(text)
    assert validate_policy(parsed.documents[0])[1]
    assert not accepts(json_schema(), parsed.documents[0].value, json_schema())


def test_documents_without_a_heading_are_refused() -> None:
    for text in ("metadata: {name: a}", "kind: Nothing\nmetadata: {name: a}", "7"):
        assert not accepts(json_schema(), documents(text)[0], json_schema())


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_the_schema_is_json_and_every_reference_in_it_resolves(kind: str | None) -> None:
    schema = json_schema(kind)
    text = json.dumps(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    references = set(re.findall(r'"\$ref": "#/\$defs/([A-Za-z0-9]+)"', text))
    assert references <= set(schema["$defs"])


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_stand_in_the_schema_as_an_operator_writes_them(kind: str) -> None:
    for one in fields(kind).values():
        if one.unit == "duration" and one.default is not None:
            assert isinstance(one.default, str), one.path
