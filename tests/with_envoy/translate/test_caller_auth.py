"""Tokens and authorization that a listener requires, at a real Envoy: who is served, and what refusals cost."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from tests.eventually import eventually
from tests.with_envoy.authorization_service import authorizing
from tests.with_envoy.json_web_tokens import AUDIENCE, ISSUER, TokenIssuer
from tests.with_envoy.translate.test_listener_options import LIMIT_S, _route, hearing
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool, route_counts

__all__ = ["hearing"]
pytestmark = pytest.mark.envoy

IDP, OTHER = TokenIssuer(), TokenIssuer()
LATE_S = int(time.time()) - 3600


def provider(key_set: str, *, more: str = "") -> str:
    return f"jwt: {{providers: [{{name: idp, issuer: '{ISSUER}', audiences: [{AUDIENCE}], {key_set}{more}}}]}}"


INLINE = f"localJwks: {{inline: '{IDP.key_set()}'}}"
CLAIMS = ", claimToHeaders: [{claim: sub, header: x-caller}]"


async def refusal(one: Any, **headers: str) -> tuple[int, str, str]:
    """Status, reason and message for a caller with these headers."""
    async with one.client.post(f"{one.url}/v1/completions", json={"model": "m"}, headers=headers) as answer:
        body = await answer.json()
        return answer.status, answer.headers["x-switchgear-reason"], body["error"]["message"]


async def upstream_requests(one: Any) -> int:
    return (await one.envoy.stats("cluster.p.upstream_rq_total"))["cluster.p.upstream_rq_total"]


async def test_only_callers_with_a_valid_token_are_served(rig, hearing):
    one = await rig(pool("p", hearing) + _route(provider(INLINE, more=CLAIMS)))
    answer = await one.complete(headers={**IDP.header(), "x-caller": "forged"})
    assert answer.status == 200
    assert hearing.seen[-1]["x-caller"] == "alice"
    assert "authorization" not in hearing.seen[-1]
    assert await refusal(one) == (401, "invalid-token", "Jwt is missing")
    for header, status, message in (
        (OTHER.header(), 401, "Jwt verification fails"),
        (IDP.header(exp=LATE_S), 401, "Jwt is expired"),
        (IDP.header(exp=None), 401, "Jwt"),
        (IDP.header(iss="https://other.test"), 401, "Jwt issuer is not configured"),
        (IDP.header(aud="other"), 403, "Audiences in Jwt are not allowed"),
        ({"authorization": "Bearer x.y.z"}, 401, "Jwt"),
    ):
        found = await refusal(one, **header)
        assert found[:2] == (status, "invalid-token"), message
        assert found[2].startswith(message)
    assert await upstream_requests(one) == 1
    assert len(hearing.seen) == 1


@pytest.fixture
async def published() -> AsyncIterator[Any]:
    """A server of the key set: its port, and how often it was asked."""

    class Published:
        port, asked = 0, 0

        async def answer(self, _: web.Request) -> web.Response:
            self.asked += 1
            return web.json_response(text=IDP.key_set())

    one, app = Published(), web.Application()
    app.router.add_get("/keys", one.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one.port = runner.addresses[0][1]
    yield one
    await runner.cleanup()


async def test_keys_are_fetched_once_from_their_uri(rig, hearing, published):
    keys = f"remoteJwks: {{uri: 'http://127.0.0.1:{published.port}/keys'}}"
    one = await rig(pool("p", hearing) + _route(provider(keys)))
    for _ in range(5):
        assert (await one.complete(headers=IDP.header())).status == 200
    assert (await refusal(one))[:2] == (401, "invalid-token")
    assert (await refusal(one, **OTHER.header()))[:2] == (401, "invalid-token")
    assert published.asked == 1


async def test_lost_key_server_refuses_all_callers(rig, hearing):
    one = await rig(pool("p", hearing) + _route(provider("remoteJwks: {uri: 'http://127.0.0.1:1/keys'}")))
    assert (await refusal(one, **IDP.header()))[:2] == (401, "invalid-token")
    assert not hearing.seen


async def test_key_set_file_is_read(rig, hearing, tmp_path):
    (tmp_path / "keys.json").write_text(IDP.key_set())
    files = {"/etc/envoy/": f"{tmp_path}/"}
    one = await rig(pool("p", hearing) + _route(provider("localJwks: {file: /etc/envoy/keys.json}")), files=files)
    assert (await one.complete(headers=IDP.header())).status == 200
    assert (await refusal(one))[0] == 401


async def test_public_route_needs_no_token(rig, hearing):
    listener = provider(INLINE, more=CLAIMS)
    checked = _route(listener, match="{pathPrefix: /v1/}")
    public = _route(listener, match="{pathPrefix: /open}").replace("{name: r}", "{name: o}")
    one = await rig(pool("p", hearing) + checked + public.replace("  pools:", "  public: true\n  pools:"))
    async with one.client.post(f"{one.url}/open", json={"model": "m"}, headers={"x-caller": "forged"}) as answer:
        assert answer.status == 200
    assert "x-caller" not in hearing.seen[-1]
    assert (await refusal(one))[0] == 401


async def test_refused_caller_is_read_no_body_and_takes_no_slot(rig, hearing):
    """A caller without token who only begins a large body is answered at once."""
    one = await rig(pool("p", hearing) + _route(provider(INLINE)), ceilings={"p": (0, 0)})

    async def endless() -> AsyncIterator[bytes]:
        yield b'{"model": "m", "prompt": "'
        await eventually(lambda: False, "the answer", LIMIT_S)

    async with one.client.post(f"{one.url}/v1/completions", data=endless()) as answer:
        assert (answer.status, answer.headers["x-switchgear-reason"]) == (401, "invalid-token")
    stats = await one.envoy.stats("cluster.p.")
    assert stats["cluster.p.upstream_rq_pending_overflow"] == 0


async def test_authorization_service_decides_without_the_body(rig, hearing):
    async with authorizing() as service:
        listener = f"extAuth: {{address: 127.0.0.1, port: {service.port}}}"
        one = await rig(pool("p", hearing) + _route(listener))
        assert (await one.complete(headers={"x-allowed": "yes"})).status == 200
        assert await refusal(one) == (403, "not-authorized", "no quota")
    assert [headers.get("x-allowed") for headers in service.asked] == ["yes", None]
    assert service.bodies == ["", ""]
    assert len(hearing.seen) == 1


@pytest.mark.parametrize(("allow", "served"), [("false", False), ("true", True)])
async def test_lost_authorization_service_refuses_unless_failure_mode_allows(rig, hearing, allow, served):
    listener = f"extAuth: {{address: 127.0.0.1, port: 1, failureModeAllow: {allow}}}"
    one = await rig(pool("p", hearing) + _route(listener))
    if served:
        assert (await one.complete()).status == 200
    else:
        assert (await refusal(one))[:2] == (503, "authorization-unavailable")
    assert len(hearing.seen) == served


async def test_http_authorization_service_gets_path_and_token(rig, hearing):
    asked: list[tuple[str, str, str | None]] = []

    async def check(request: web.Request) -> web.Response:
        token = request.headers.get("authorization")
        asked.append((request.method, request.path, token))
        return web.Response(status=200 if token == "Bearer good" else 401)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", check)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    one = await rig(
        pool("p", hearing)
        + _route(f"extAuth: {{protocol: http, address: 127.0.0.1, port: {port}, pathPrefix: /check}}")
    )
    assert (await one.complete(headers={"authorization": "Bearer good"})).status == 200
    assert (await refusal(one, authorization="Bearer bad"))[:2] == (401, "not-authorized")
    await runner.cleanup()
    assert asked == [("POST", "/check/v1/completions", f"Bearer {one}") for one in ("good", "bad")]


async def test_token_is_checked_before_the_service_is_asked(rig, hearing):
    async with authorizing() as service:
        listener = f"{provider(INLINE, more=CLAIMS)}, extAuth: {{address: 127.0.0.1, port: {service.port}}}"
        one = await rig(pool("p", hearing) + _route(listener))
        assert (await refusal(one, **{"x-allowed": "yes"}))[0] == 401
        assert not service.asked
        assert (await one.complete(headers={**IDP.header(), "x-allowed": "yes"})).status == 200
    assert [headers["x-caller"] for headers in service.asked] == ["alice"]


async def test_route_matches_on_a_claim(rig, hearing):
    listener = provider(INLINE, more=", claimToHeaders: [{claim: tier, header: x-tier}]")
    gold = _route(listener, match="{headers: [{name: x-tier, exact: gold}]}").replace("{name: r}", "{name: gold}")
    one = await rig(pool("p", hearing) + _route(listener) + gold)
    for tier in ("gold", "none"):
        assert (await one.complete(headers={**IDP.header(tier=tier), "x-tier": "gold"})).status == 200
    counts = await route_counts(one)
    assert counts == {"gold.non-streaming": 1, "r.non-streaming": 1}
