"""What the published schemas of the Gateway API, Envoy Gateway and Kubernetes say against an object."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from istio.imports.source_values import seconds
from tests.istio.istio_schemas import as_json_schema

DATA = Path(__file__).parent / "data"
CORE = {"Service", "EndpointSlice"}
VERSION = "1.34"
_PREFIX = re.compile(r"(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|[%][0-9a-fA-F]{2})+")


@cache
def schemas() -> dict[tuple[str, str], Any]:
    """Validators by apiVersion and kind."""
    found = {}
    for path in DATA.glob("*.yaml"):
        one = yaml.safe_load(path.read_text())
        found[one["apiVersion"], one["kind"]] = jsonschema.Draft202012Validator(as_json_schema(one["schema"]))
    return found


def complaints(one: dict[str, Any]) -> Iterator[str]:
    """All that is wrong with an object."""
    where = f"{one['kind']}/{one['metadata']['name']}"
    if one["kind"] in CORE:
        try:
            kubernetes_validate.validate(one, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{where}: {error.message[:200]}"
        return
    for error in schemas()[one["apiVersion"], one["kind"]].iter_errors(one["spec"]):
        yield f"{where} {error.json_path}: {error.message[:200]}"
    if one["kind"] == "HTTPRoute":
        yield from (f"{where}: {said}" for said in _of_a_route(one["spec"]))
    if one["kind"] == "BackendTrafficPolicy":
        yield from (f"{where}: {said}" for said in _of_a_policy(one["spec"]))


def _of_a_route(spec: dict[str, Any]) -> Iterator[str]:
    """The rules of HTTPRoute that are in CEL, as far as exports could break them."""
    for rule in spec["rules"]:
        whole, each = (seconds(rule["timeouts"].get(name, "0s")) for name in ("request", "backendRequest"))
        if whole and each and each > whole:
            yield "backendRequest timeout cannot be longer than request timeout"
        for match in rule["matches"]:
            names = [header["name"].lower() for header in match.get("headers", ())]
            if len(set(names)) != len(names):
                yield "header names are not unique"
            path = match["path"]
            if path["type"] == "PathPrefix" and not _valid(path["value"]):
                yield f"{path['value']!r} is not a valid prefix"
        for ref in rule["backendRefs"]:
            if ref["kind"] == "Service" and "port" not in ref:
                yield "Must have port for Service reference"


def _valid(prefix: str) -> bool:
    wrong = any(part in prefix for part in ("//", "/./", "/../", "%2f", "%2F", "#"))
    return not wrong and not prefix.endswith(("/.", "/..")) and _PREFIX.fullmatch(prefix) is not None


def _of_a_policy(spec: dict[str, Any]) -> Iterator[str]:
    budget = spec["circuitBreaker"]["retryBudget"]["percent"]
    if budget["numerator"] > budget["denominator"]:
        yield "numerator must be less than or equal to denominator"
    backoff = spec["retry"].get("perRetry", {}).get("backOff", {})
    base, most = (seconds(backoff.get(name, "0s")) for name in ("baseInterval", "maxInterval"))
    if base is not None and most is not None and most < base:
        yield "the longest back-off is below the first"
