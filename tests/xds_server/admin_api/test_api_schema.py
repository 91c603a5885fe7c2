"""A running server matches the published schema: every endpoint is called, and every field is checked."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import jsonschema
import pytest

from engine.address import ListenAddress
from tests.xds_server.admin.dashboard.fake_server_backend import FakeServerBackend
from tests.xds_server.cli import test_eject_drain_restore_audit as serving
from xds_server.admin.admin_server import AdminServer
from xds_server.admin.config_dump_routes import add_config_dump
from xds_server.admin.history_routes import add_history
from xds_server.admin.json_http import as_json_dict
from xds_server.admin.tap_stream import TapSource, add_tap
from xds_server.admin_api import endpoints
from xds_server.admin_api.api_schema import api_schema
from xds_server.admin_api.endpoints import ENDPOINTS, AdminEndpoint
from xds_server.admin_api.live_types import TABLES
from xds_server.metrics.metric_registry import Metrics
from xds_server.telemetry.request_tap import RequestTap

own = serving.own
SCHEMA = api_schema()
POOL = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: chat}}
spec:
  model: m
  probe: {{interval: 0.1s}}
  endpoints:
  - {{address: 127.0.0.1, port: {first}, name: r0, zone: a}}
  - {{address: 127.0.0.1, port: {second}, name: r1, zone: {zone}}}
"""


def strict(schema: Any) -> Any:
    """The schema, refusing unknown fields, which the published one allows for newer servers."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(one) for name, one in schema.items()}
    return found | {"additionalProperties": False} if "properties" in found and "required" in found else found


STRICT = {"components": strict(SCHEMA["components"])}


def validate(answer: Any, content: dict[str, Any]) -> None:
    """Raise ``jsonschema.ValidationError`` unless the answer matches the document."""
    jsonschema.Draft202012Validator(STRICT | content).validate(answer)


def responses(endpoint: AdminEndpoint[Any]) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMA["paths"][endpoint.path][endpoint.method.lower()]["responses"]
    return found


def schema_of(endpoint: AdminEndpoint[Any], status: int) -> dict[str, Any]:
    """Schema of an answer with this status."""
    named = responses(endpoint)
    content = named.get(str(status), named["default"])["content"]
    found: dict[str, Any] = content[endpoint.media_type if str(status) in named else "application/json"]["schema"]
    return found


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        node = list(node.values())
    for one in node if isinstance(node, list) else ():
        yield from references(one)


def test_api_document_is_complete() -> None:
    schemas = SCHEMA["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["description"].strip()
    used = {one.removeprefix("#/components/schemas/") for one in references(SCHEMA)}
    assert used == set(schemas)
    assert schemas["ApplyRequest"]["required"] == ["texts"], "of a request only what has no default"
    assert "by" in schemas["OrderStatus"]["required"]


class NoVersions:
    """Stub: only its routes count."""


def test_documented_endpoints_equal_routes() -> None:
    server = AdminServer(ListenAddress("127.0.0.1", 0), FakeServerBackend(1), Metrics())
    app = server._runner.app
    assert app is not None
    add_config_dump(app, NoVersions())  # type: ignore[arg-type]
    add_history(app, NoVersions())  # type: ignore[arg-type]
    add_tap(app, TapSource(tap=RequestTap(), pools=tuple, sampling_ratio=lambda: 1.0))
    routes = {(one.method, one.resource.canonical) for one in app.router.routes() if one.resource is not None}
    pages = {"/", "/login"}
    served = {(method, path) for method, path in routes if path not in pages and not path.startswith("/dashboard")}
    assert served - {("HEAD", path) for _, path in served} == {(one.method, one.path) for one in ENDPOINTS}


async def read_event(answer: aiohttp.ClientResponse) -> tuple[str, Any]:
    event = (await answer.content.readline()).decode().strip().removeprefix("event: ")
    data = (await answer.content.readline()).decode().removeprefix("data: ")
    await answer.content.readline()
    return event, json.loads(data)


async def visit(session: aiohttp.ClientSession, endpoint: AdminEndpoint[Any], *path: str, **params: Any) -> Any:
    """Call an endpoint, and validate the answer."""
    async with session.request(
        endpoint.method, endpoint.url(*path, query=params.pop("query", ())), **params
    ) as answer:
        if endpoint.messages:
            event, data = await read_event(answer)
            schema = responses(endpoint)["200"]["content"][endpoint.media_type]["x-events"][event]
            validate(data, schema)
            return data
        if endpoint.media_type != "application/json":
            assert isinstance(await answer.text(), str)
            assert answer.status == endpoint.status
            return None
        found = await answer.json()
        assert str(answer.status) in responses(endpoint) or "error" in found, found
        validate(found, schema_of(endpoint, answer.status))
        return found


async def test_running_server_matches_the_published_schema(own: Any) -> None:
    server, engines = own
    first, second = (engine.port for engine in engines[:2])
    one, other = (POOL.format(first=first, second=second, zone=zone) for zone in "ab")
    order = {"engine": "r0", "action": "drain", "for_s": 60, "reason": "a test", "by": "ann", "force": True}
    visited: set[str] = set()

    async with aiohttp.ClientSession(server.admin) as session:

        async def ask(endpoint: AdminEndpoint[Any], *path: str, **params: Any) -> Any:
            visited.add(f"{endpoint.method} {endpoint.path}")
            return await visit(session, endpoint, *path, **params)

        for _ in range(600):
            rows = (await ask(endpoints.ENGINES))["engines"]
            if rows and all(row["health"] == "HEALTHY" for row in rows):
                break
            await asyncio.sleep(0.05)
        assert (await ask(endpoints.ORDER, json=order))["engine"] == "r0"
        assert (await ask(endpoints.ORDERS))["orders"]
        assert (await ask(endpoints.WHY, query=[("name", "chat/r0")]))["kind"] == "engine"
        for name in ("chat", "a"):
            assert (await ask(endpoints.WHY, query=[("name", name)]))["subject"] == name
        assert (await ask(endpoints.END_ORDER, query=[("name", "r0"), ("by", "ann")])) == {"ended": True}
        applied = await ask(endpoints.APPLY, json={"texts": {"a.yaml": one}})
        assert applied.get("state") == "served", applied
        assert (await ask(endpoints.APPLY, json={"texts": {"a.yaml": other}, "by": "ann"}))["replaced"]
        assert (await ask(endpoints.ROLLBACK, json={"version": 1}))["state"] == "served"
        assert len((await ask(endpoints.HISTORY))["versions"]) > 2
        for version in ("serving", "1"):
            assert (await ask(endpoints.VERSION, version))["texts"]
        assert (await ask(endpoints.EVENTS))["events"]
        assert (await ask(endpoints.AUDIT))["writes"]
        absent = [("node", "n1"), ("absent", "true"), ("zone", "a"), ("role", "gateway")]
        assert (await ask(endpoints.RESOURCES, query=absent))["resources"]
        assert (await ask(endpoints.SNAPSHOT, query=[("zone", "a"), ("role", "sidecar")]))["resources"]
        for endpoint in (
            endpoints.HEALTHZ, endpoints.READYZ, endpoints.METRICS, endpoints.SERVER_INFO, endpoints.ACCESS,
            endpoints.CANARY, endpoints.LIVE, endpoints.POLICIES, endpoints.POOLS, endpoints.PROXIES,
            endpoints.OBJECTIVES, endpoints.SHADOW, endpoints.TAP, endpoints.PROBLEMS, endpoints.ZONES,
            endpoints.CONDITIONS, endpoints.POOL_HISTORY, endpoints.TENANTS, endpoints.USAGE,
        ):  # fmt: skip
            await ask(endpoint)
        # Refusals.
        assert "no policies are held back" in (await ask(endpoints.ALLOW_SHRINK))["error"]
        assert (await ask(endpoints.END_CANARY))["state"] == "refused"
        assert (await ask(endpoints.APPLY, json={"texts": {"a.yaml": one}, "expect": "99"}))["state"]
        assert (await ask(endpoints.APPLY, json={"texts": {"a.yaml": "kind: x"}}))["problems"]
        assert "error" in await ask(endpoints.APPLY, json={"texts": 3})
        assert "error" in await ask(endpoints.VERSION, "99")
        assert "error" in await ask(endpoints.WHY, query=[("name", "missing")])
        assert "error" in await ask(endpoints.ORDER, json=order | {"engine": "missing"})
    assert visited == {f"{one.method} {one.path}" for one in ENDPOINTS}


async def test_proxies_refusals_and_changes_match_the_schema() -> None:
    made = FakeServerBackend(12)
    async with (
        AdminServer(ListenAddress("127.0.0.1", 0), made, Metrics()) as admin,
        aiohttp.ClientSession(f"http://127.0.0.1:{admin.port}") as session,
    ):
        assert any(
            kind["refused"]
            for one in (await visit(session, endpoints.PROXIES))["proxies"]
            for kind in one["types"]
        )
        assert (await visit(session, endpoints.ENGINES, query=[("pool", "small")]))["engines"]
        for endpoint in (
            endpoints.POOLS,
            endpoints.ZONES,
            endpoints.EVENTS,
            endpoints.PROBLEMS,
            endpoints.OBJECTIVES,
            endpoints.TENANTS,
            endpoints.CONDITIONS,
            endpoints.POOL_HISTORY,
        ):
            await visit(session, endpoint)
        async with session.get(endpoints.LIVE.path) as answer:
            events = responses(endpoints.LIVE)["200"]["content"]["text/event-stream"]["x-events"]
            event, data = await read_event(answer)
            assert (event, set(data["tables"])) == ("frame", set(TABLES))
            validate(data, events[event])
            made.change("vllm-7", in_flight=99)
            event, data = await read_event(answer)
            assert (event, data["tables"]["engines"]) == ("change", {"chat/vllm-7": {"inFlight": 99}})
            validate(data, events[event])


def test_missing_or_new_field_fails_the_schema() -> None:
    engine = as_json_dict(FakeServerBackend(1).engines()[0])
    content = {"$ref": "#/components/schemas/EngineStatus"}
    whole = json.loads(json.dumps(engine))
    validate(whole, content)
    for wrong in ({key: value for key, value in whole.items() if key != "floor"}, whole | {"new": 1}):
        with pytest.raises(jsonschema.ValidationError):
            validate(wrong, content)
