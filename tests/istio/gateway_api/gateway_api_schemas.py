"""What the published CRDs of the Gateway API, Envoy Gateway and the inference extension say against an object.

The CRDs stand outside of the repository; without them the tests that need them are skipped. Core types are checked
against Kubernetes' own schemas.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.cluster_double.rules import asked, broken
from tests.cluster_double.structural import defaulted
from tests.istio.istio_schemas import as_json_schema

PUBLISHED = Path(__file__).parents[3].parent / "shared" / "data"
CORE = {"Service", "EndpointSlice"}
VERSION = "1.34"


@cache
def schemas(channel: str) -> dict[tuple[str, str], Any]:
    """OpenAPI schemas by apiVersion and kind, with the Gateway API of this channel."""
    folders = [PUBLISHED / "gateway-api" / channel, PUBLISHED / "envoy-gateway", PUBLISHED / "gaie"]
    if missing := [str(one.relative_to(PUBLISHED.parents[1])) for one in folders if not one.is_dir()]:
        pytest.skip(f"published CRDs are missing next to the repository: {', '.join(missing)}")
    found = {}
    for path in (path for folder in folders for path in folder.glob("*.yaml")):
        for crd in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader):
            if crd and crd["kind"] == "CustomResourceDefinition":
                for version in crd["spec"]["versions"]:
                    api = f"{crd['spec']['group']}/{version['name']}"
                    found[api, crd["spec"]["names"]["kind"]] = version["schema"]["openAPIV3Schema"]
    return found


@cache
def validator(channel: str, api: str, kind: str) -> Any:
    return jsonschema.Draft202012Validator(as_json_schema(schemas(channel)[api, kind]))


def complaints(one: dict[str, Any], channel: str = "standard") -> Iterator[str]:
    """All that is wrong with an object; CEL rules where their interpreter is installed."""
    where = f"{one['kind']}/{one['metadata']['name']}"
    if one["kind"] in CORE:
        try:
            kubernetes_validate.validate(one, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{where}: {error.message[:200]}"
        return
    bare = {key: value for key, value in one.items() if key not in {"apiVersion", "kind", "metadata"}}
    for error in validator(channel, one["apiVersion"], one["kind"]).iter_errors(bare):
        yield f"{where} {error.json_path}: {error.message[:200]}"
    if asked():
        schema = schemas(channel)[one["apiVersion"], one["kind"]]
        yield from (f"{where} {cause}" for cause in broken(schema, defaulted(schema, one), None))
