"""A request's estimated tokens choose its route, at a real Envoy."""

import io
import json
from typing import Any

import pytest

from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool, route, route_counts
from xds_server.translate.request_fields import ESTIMATED_TOKENS_HEADER

pytestmark = pytest.mark.envoy

LARGE = 2_000
"""Tokens above which requests are large here."""


async def used(one: Any, body: dict[str, Any] | list[str], headers: dict[str, str] | None = None) -> str:
    """The route that Envoy chose for this body."""
    before = await route_counts(one)
    async with one.client.post(
        f"{one.url}/v1/completions",
        data=io.BytesIO(json.dumps(body).encode()),
        headers={"content-type": "application/json", **(headers or {})},
    ) as answer:
        await answer.read()
    after = await route_counts(one)
    (found,) = [name.partition(".")[0] for name in after if after[name] != before.get(name)]
    return found


@pytest.fixture
async def sized(rig, engine):
    one = await engine(model="m")
    return await rig(
        pool("p", one)
        + route("usual", "p")
        + route("large", "p", match=f"{{tokensAbove: {LARGE}}}")
        + route("huge", "p", match="{tokensAbove: 100000}")
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "x", "max_tokens": 1}, "usual"),
        ({"prompt": "x", "max_tokens": 1_900}, "usual"),
        ({"prompt": "x", "max_tokens": 2_000}, "large"),
        ({"prompt": "x", "max_completion_tokens": 2_000, "stream": True}, "large"),
        ({"prompt": "x", "max_tokens": 700, "n": 3}, "large"),
        ({"prompt": "x", "max_tokens": "2_000"}, "large"),
        ({"prompt": "x" * 4 * LARGE, "max_tokens": 1}, "large"),
        # No limit counts as 1000 tokens; nothing else of these bodies is read.
        ({"prompt": "x" * 4 * (LARGE - 1_100)}, "usual"),
        ({"prompt": "x" * 4 * (LARGE - 900)}, "large"),
        ({"prompt": "x", "max_tokens": 200_000}, "huge"),
        (["x" * 4 * LARGE], "large"),
    ],
)
async def test_size_of_a_request_chooses_its_route(sized, body, expected):
    assert await used(sized, body) == expected


async def test_caller_cannot_state_the_size(sized):
    stated = {ESTIMATED_TOKENS_HEADER: "1000000"}
    assert await used(sized, {"prompt": "x", "max_tokens": 1}, stated) == "usual"


async def test_tenants_of_the_port_say_what_a_token_is(rig, engine):
    one = await engine(model="m")
    listener = (
        "{port: 8080, address: 127.0.0.1, tenants: {header: x-tenant, trustHeader: true, answerTokens: 3000, "
        "bytesPerToken: 1, others: {requests: 1000}}}"
    )
    policies = (route("usual", "p") + route("large", "p", match=f"{{tokensAbove: {LARGE}}}")).replace(
        "{port: 8080, address: 127.0.0.1}", listener
    )
    two = await rig(pool("p", one) + policies)
    assert await used(two, {"prompt": "x"}) == "large"
    assert await used(two, {"prompt": "x", "max_tokens": 1}) == "usual"
    assert await used(two, {"prompt": "x" * LARGE, "max_tokens": 1}) == "large"
