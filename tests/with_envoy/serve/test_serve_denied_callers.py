"""Callers denied by JWT or ext_authz cost a pool nothing: no breaker and no objective counts them."""

from typing import Any

import pytest

from tests.with_envoy.authorization_service import authorizing
from tests.with_envoy.json_web_tokens import AUDIENCE, ISSUER, TokenIssuer
from tests.with_envoy.serve.conftest import PATIENT, STEADY, Site, document, eventually

pytestmark = pytest.mark.envoy

IDP = TokenIssuer()
ALLOWED = {"x-allowed": "yes"}
EACH, SERVED = 20, 30
"""Denied requests of each kind, and served ones after them: an ejection needs five errors, or half of ten."""


def write(site: Site, service_port: int) -> None:
    provider = {
        "name": "idp",
        "issuer": ISSUER,
        "audiences": [AUDIENCE],
        "localJwks": {"inline": IDP.key_set()},
    }
    listener = {
        "port": site.port,
        "address": "127.0.0.1",
        "jwt": {"providers": [provider]},
        "extAuth": {"address": "127.0.0.1", "port": service_port},
    }
    objectives = {"goodPercent": 99, "total": {"p95": "60s"}}
    breaker = {"consecutiveErrors": 5, "errorRatePercent": 50, "minCalls": 10, "windowCalls": 20}
    site.write(
        "all.yaml",
        site.pool(probe=PATIENT),
        site.route(listener=listener, objectives=objectives),
        document("ResiliencePolicy", "default", {**STEADY, "breaker": breaker}),
    )


async def denied(site: Site, status: int, **headers: str) -> None:
    assert {(await site.ask(**headers))[0] for _ in range(EACH)} == {status}


async def test_denied_callers_count_for_no_breaker_and_no_objective(site: Site) -> None:
    await site.start_engines(2)
    write(site, 1)
    await site.serve()
    envoy = await site.envoy()
    valid = IDP.header()
    await site.answered(503, **valid, **ALLOWED)
    await denied(site, 503, **valid, **ALLOWED)  # nothing listens: the service cannot be asked
    async with authorizing() as service:
        write(site, service.port)
        await site.answered(**valid, **ALLOWED)
        await denied(site, 401)
        await denied(site, 403, **IDP.header(aud="other"))
        await denied(site, 403, **valid)
        assert len(service.asked) >= EACH
        for _ in range(SERVED):
            assert (await site.ask(**valid, **ALLOWED))[0] == 200

    sent = (await envoy.stats("cluster.chat.upstream_rq_total"))["cluster.chat.upstream_rq_total"]
    assert sent == SERVED + 1

    async def all_are_counted() -> bool:
        return await site.metric("switchgear_attempts_total", of='outcome="success"') == sent

    # One worker reports its requests in order, so whatever the denied ones count for was counted before.
    await eventually(all_are_counted, f"{sent} calls are counted")
    assert await counts(site) == {
        "switchgear_attempts_total": sent,
        "switchgear_requests_total": sent,
        "switchgear_requests_refused_total": 0,
        "switchgear_engine_failed_ratio": 0,
        "switchgear_objective_calls_total": 2 * sent,
        "switchgear_objective_good_calls_total": 2 * sent,
        "switchgear_engines_out": 0,
    }
    stats = await envoy.stats("cluster.chat.")
    for name in ("upstream_rq_pending_overflow", "outlier_detection.ejections_enforced_total"):
        assert stats[f"cluster.chat.{name}"] == 0


async def counts(site: Site) -> dict[str, Any]:
    """What one hundred denied requests could have counted for."""
    return {
        name: await site.metric(name)
        for name in (
            "switchgear_attempts_total",
            "switchgear_requests_total",
            "switchgear_requests_refused_total",
            "switchgear_engine_failed_ratio",
            "switchgear_objective_calls_total",
            "switchgear_objective_good_calls_total",
            "switchgear_engines_out",
        )
    }
