"""Istio's published CRDs, and what they say against an object.

The schemas stand outside of the repository; where they are not, the tests that need them are skipped. Fields that
no schema knows are refused here, though the API server would drop them without a word.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.cluster_double.rules import asked, broken

CRDS = Path(__file__).parents[2].parent / "shared" / "data" / "istio-crds.yaml"


@cache
def schemas() -> dict[tuple[str, str], Any]:
    """The OpenAPI schema of each kind by its apiVersion and name."""
    if not CRDS.exists():
        pytest.skip(f"Istio's CRDs are not there: {CRDS.name} belongs into ../shared/data")
    known = {}
    for crd in yaml.load_all(CRDS.read_text(), Loader=yaml.CSafeLoader):
        if crd:
            for version in crd["spec"]["versions"]:
                api = f"{crd['spec']['group']}/{version['name']}"
                known[api, crd["spec"]["names"]["kind"]] = version["schema"]["openAPIV3Schema"]
    return known


@cache
def validator(api: str, kind: str) -> Any:
    return jsonschema.Draft202012Validator(as_json_schema(schemas()[api, kind]))


def as_json_schema(node: Any) -> Any:
    """An OpenAPI v3 schema of Kubernetes as JSON Schema."""
    if isinstance(node, list):
        return [as_json_schema(one) for one in node]
    if not isinstance(node, dict):
        return node
    plain = {key: as_json_schema(value) for key, value in node.items() if key not in {"properties", "default"}}
    if "properties" in node:
        plain["properties"] = {key: as_json_schema(value) for key, value in node["properties"].items()}
        closed = "additionalProperties" not in node and not node.get("x-kubernetes-preserve-unknown-fields")
        if closed and node.get("type") == "object":
            plain["additionalProperties"] = False
    if node.get("x-kubernetes-int-or-string"):
        plain.pop("anyOf", None)
        plain["type"] = ["integer", "string"]
    if node.get("format") == "int32":
        plain |= {"minimum": max(-(2**31), node.get("minimum", -(2**31))), "maximum": 2**31 - 1}
    if node.get("nullable") and "type" in plain:
        plain["type"] = [plain["type"], "null"] if isinstance(plain["type"], str) else [*plain["type"], "null"]
    return plain


def complaints(one: dict[str, Any]) -> Iterator[str]:
    """All that the published schema has against an object; its rules only where something can run them."""
    schema = schemas()[one["apiVersion"], one["kind"]]
    where = f"{one['kind']}/{one['metadata']['name']}"
    # The schema says nothing of metadata; the API server does.
    bare = {key: value for key, value in one.items() if key not in {"apiVersion", "kind", "metadata"}}
    for error in validator(one["apiVersion"], one["kind"]).iter_errors(bare):
        yield f"{where} {error.json_path}: {error.message[:200]}"
    if asked():
        yield from (f"{where} {cause}" for cause in broken(schema, one, None))
