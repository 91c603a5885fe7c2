"""Tenants of a listener: what is refused, and where."""

from pathlib import Path

import pytest

from policies.lints.lint import lint
from policies.load import load_contents
from policies.tenants import Quota, QuotaUnit
from tests.policies.test_external_services import KEYS, POOL, errors, jwt, route

OTHERS = "others: {requests: 5}"
TRUSTED = f"tenants: {{header: x-tenant, trustHeader: true, {OTHERS}}}"


def tenants(fields: str, header: str = "header: x-tenant, trustHeader: true") -> str:
    return f"tenants: {{{header}, {fields}}}"


@pytest.mark.parametrize(
    ("fields", "code", "where"),
    [
        (f"named: [{{name: a, requests: 1}}, {{name: a, requests: 2}}], {OTHERS}", "SG039", "named[1].name"),
        (f"named: [{{name: others, requests: 1}}], {OTHERS}", "SG039", "named[0].name"),
        (f"named: [{{name: a, requests: 9, burst: 10}}], {OTHERS}", "SG040", "named[0].burst"),
        ("others: {requests: 5, burst: 6}", "SG040", "others.burst"),
        ("others: {requests: 5, tokensBurst: 6}", "SG040", "others.tokensBurst"),
        ("others: {requests: 5, tokens: 0}", "SG026", "others.tokens"),
        ("others: {requests: 0}", "SG026", "others.requests"),
        ("others: {requests: 5, perDay: {}}", "SG040", "others.perDay"),
        ("others: {requests: 5, perMonth: {requests: 0}}", "SG026", "others.perMonth.requests"),
        (
            f"named: [{{name: a, requests: 1, perDay: {{tokens: 9}}, perMonth: {{tokens: 8}}}}], {OTHERS}",
            "SG040",
            "named[0].perMonth.tokens",
        ),
        ("others: {}", "SG024", "others.requests"),
        (f"named: [{{name: a, requests: 1, weight: 2}}], {OTHERS}", "SG040", "named[0].weight"),
        ("others: {requests: 5, minPercent: 5}", "SG040", "others.minPercent"),
        ("fairShares: true, others: {burst: 5}", "SG040", "others.burst"),
        ("fairShares: true, others: {weight: 0}", "SG026", "others.weight"),
        (
            "fairShares: true, named: [{name: a, minPercent: 60}], others: {minPercent: 50}",
            "SG040",
            "others.minPercent",
        ),
        (
            "fairShares: true, named: [{name: a, minPercent: 60}, {name: b, minPercent: 50}], others: {}",
            "SG040",
            "named[1].minPercent",
        ),
        (f"named: [{{name: 'a,b', requests: 1}}], {OTHERS}", "SG026", "named[0].name"),
    ],
)
def test_unusable_quota_is_refused(fields: str, code: str, where: str) -> None:
    found = [(one, path) for one, path, _ in errors(route("a", tenants(fields)))]
    assert found == [(code, f"spec.listener.tenants.{where}")]


def test_header_that_callers_can_send_is_refused_unless_it_is_trusted() -> None:
    [(code, where, message)] = errors(route("a", tenants(OTHERS, "header: x-tenant")))
    assert (code, where) == ("SG046", "spec.listener.tenants.header")
    assert message == "any caller can send x-tenant, and take the quota of any tenant"
    claims = jwt(KEYS + ", claimToHeaders: [{claim: team, header: x-tenant}]")
    proven = f"{claims}, {tenants(OTHERS, 'header: x-tenant')}"
    certified = "tls: {secret: front, callers: {identityHeader: x-tenant}}"
    for listener in (proven, TRUSTED, f"{certified}, {tenants(OTHERS, 'header: x-tenant')}"):
        load_contents({Path("p.yaml"): (POOL + route("a", listener)).encode()})
    [(code, where, _)] = errors(route("a", f"{claims}, {tenants(OTHERS, 'header: x-team')}"))
    assert (code, where) == ("SG046", "spec.listener.tenants.header")


def test_header_has_its_value_from_claims_or_from_certificates() -> None:
    claims = jwt(KEYS + ", claimToHeaders: [{claim: team, header: x-tenant}]")
    [(code, where, message)] = errors(
        route("a", f"{claims}, tls: {{secret: front, callers: {{identityHeader: x-tenant}}}}")
    )
    assert (code, where) == ("SG040", "spec.listener.tls.callers.identityHeader")
    assert message == "jwt.providers[].claimToHeaders writes x-tenant, too"


@pytest.mark.parametrize("header", ["x-envoy-tenant", "host", "X-Tenant", "x_tenant"])
def test_reserved_header_names_no_tenant(header: str) -> None:
    [(_, where, _)] = errors(route("a", tenants(OTHERS, f"header: {header}, trustHeader: true")))
    assert where == "spec.listener.tenants.header"


def test_routes_of_a_port_have_the_same_tenants() -> None:
    [(code, where, _)] = errors(route("a", TRUSTED), route("b", "address: 0.0.0.0"))
    assert (code, where) == ("SG036", "spec.listener.tenants")


@pytest.mark.parametrize(("more", "warned"), [("", True), (", trustedHops: 1", False)])
def test_trusted_header_on_an_open_port_is_warned_of(more: str, warned: bool) -> None:
    policies = load_contents({Path("p.yaml"): (POOL + route("a", TRUSTED + more)).encode()})
    assert ("SG196" in {one.code for one in lint(policies)}) is warned


def test_burst_is_what_the_quota_gives_in_a_second() -> None:
    assert Quota(requests=600, per=QuotaUnit.MINUTE).burst_requests == 10
    assert Quota(requests=600, per=QuotaUnit.MINUTE, burst=50).burst_requests == 50
    assert Quota(requests=3600, per=QuotaUnit.HOUR).per_s == 1


def test_fair_shares_need_no_quota() -> None:
    shares = tenants("fairShares: true, named: [{name: a, weight: 2, minPercent: 10}, {name: b}], others: {}")
    policies = load_contents({Path("p.yaml"): (POOL + route("a", shares)).encode()})
    (found,) = policies.routes.values()
    assert found.spec.listener.tenants is not None
    assert not found.spec.listener.tenants.has_quotas
    assert str(found.spec.listener.tenants.named[0]) == "no quota"
