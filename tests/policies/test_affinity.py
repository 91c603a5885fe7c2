"""Affinity of a route: what is refused, where, and what draws a warning."""

from pathlib import Path

import pytest

from policies.findings import PolicyErrors
from policies.lints.lint import lint
from policies.load import load_contents
from policies.model import PolicySet
from tests.policies.conftest import SOUND

TWO_ENGINES = SOUND.replace("    - {address: 10.0.0.3, port: 8000, zone: c}\n", "")
HEDGED = """---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {name: default}
spec: {hedging: {enabled: true, delay: 2s}, retries: {attempts: 1}}
"""


def loaded(affinity: str, *, base: str = SOUND, more: str = "") -> PolicySet:
    return load_contents({Path("p.yaml"): f"{base}  affinity: {affinity}\n{more}".encode()})


def line_of_affinity(base: str = SOUND) -> int:
    return base.count("\n") + 1


@pytest.mark.parametrize(
    ("affinity", "said"),
    [
        ("{}", "no key of requests"),
        ("{slackPercent: 20}", "no key of requests"),
        ("{header: a, prefix: {}}", "header and prefix exclude each other"),
        ("{header: a, cookie: {name: b}, prefix: {}}", "header and cookie and prefix exclude each other"),
        ("{tenant: false}", "no key of requests"),
        ("{prefix: {}, tenant: true}", "prefix and tenant exclude each other"),
    ],
)
def test_exactly_one_key_is_allowed(affinity: str, said: str) -> None:
    with pytest.raises(PolicyErrors) as caught:
        loaded(affinity)
    [found] = caught.value.exceptions
    assert (found.code, found.path) == ("SG040", "spec.affinity")
    assert str(found.origin).startswith(f"p.yaml:{line_of_affinity()}:")
    assert said in found.message


@pytest.mark.parametrize(
    ("affinity", "path"),
    [
        ("{header: 'a b'}", "spec.affinity.header"),
        ("{header: ''}", "spec.affinity.header"),
        ("{cookie: {name: 'a;b'}}", "spec.affinity.cookie.name"),
        ("{cookie: {}}", "spec.affinity.cookie"),
        ("{cookie: {name: a, path: 'x'}}", "spec.affinity.cookie.path"),
        ("{cookie: {name: a, path: '/a; Domain=b'}}", "spec.affinity.cookie.path"),
        ("{cookie: {name: a, ttl: -1s}}", "spec.affinity.cookie.ttl"),
        ("{prefix: {characters: 1}}", "spec.affinity.prefix.characters"),
        ("{prefix: {characters: 1000000}}", "spec.affinity.prefix.characters"),
        ("{header: a, slackPercent: 0}", "spec.affinity.slackPercent"),
        ("{header: a, mode: sticky}", "spec.affinity.mode"),
        ("{mode: strict, header: a, moveWithin: -1s}", "spec.affinity.moveWithin"),
        ("{tenant: a}", "spec.affinity"),
        ("{header: a, returnAfter: -1s}", "spec.affinity.returnAfter"),
    ],
)
def test_impossible_values_are_refused_at_their_field(affinity: str, path: str) -> None:
    with pytest.raises(PolicyErrors) as caught:
        loaded(affinity)
    assert any(one.path.startswith(path) for one in caught.value.exceptions)


def test_prompt_cannot_name_the_engine_of_a_strict_session() -> None:
    with pytest.raises(PolicyErrors) as caught:
        loaded("{mode: strict, prefix: {}}")
    [found] = caught.value.exceptions
    assert (found.code, found.path) == ("SG040", "spec.affinity.prefix")
    assert "mode: soft" in found.hint


def test_strict_session_needs_a_single_pool() -> None:
    pools, route = SOUND.partition("---\n")[::2]
    two = f"{pools}---\n{pools.replace('name: chat', 'name: other')}---\n{route}"
    two = two.replace("pools: [{pool: chat}]", "pools: [{pool: chat}, {pool: other}]")
    assert "other}]" in two
    loaded("{header: x-session}", base=two)
    with pytest.raises(PolicyErrors) as caught:
        loaded("{mode: strict, header: x-session}", base=two)
    [found] = caught.value.exceptions
    assert (found.code, found.path) == ("SG040", "spec.affinity.mode")


def test_prompt_cannot_be_a_key_where_envoy_reads_no_bodies() -> None:
    base = SOUND.replace("listener: {port: 80}", "listener: {port: 80, requestFields: headers}")
    with pytest.raises(PolicyErrors) as caught:
        loaded("{prefix: {}}", base=base)
    [found] = caught.value.exceptions
    assert (found.code, found.path) == ("SG040", "spec.affinity.prefix")
    assert "affinity.header" in found.hint
    loaded("{header: x-session}", base=base)


TENANTS = "listener: {port: 80, tenants: {header: x-tenant, trustHeader: true, others: {requests: 5}}}"


def test_tenant_is_a_key_only_where_the_listener_has_tenants() -> None:
    with pytest.raises(PolicyErrors) as caught:
        loaded("{tenant: true}")
    [found] = caught.value.exceptions
    assert (found.code, found.path) == ("SG040", "spec.affinity.tenant")
    assert "listener.tenants" in found.hint
    loaded("{tenant: true}", base=SOUND.replace("listener: {port: 80}", TENANTS))


def test_tenant_cannot_name_the_engine_of_a_strict_session() -> None:
    with pytest.raises(PolicyErrors) as caught:
        loaded("{mode: strict, tenant: true}", base=SOUND.replace("listener: {port: 80}", TENANTS))
    [found] = caught.value.exceptions
    assert (found.code, found.path) == ("SG040", "spec.affinity.tenant")
    assert "mode: soft" in found.hint


@pytest.mark.parametrize(
    ("affinity", "base", "more", "codes"),
    [
        ("{prefix: {}}", SOUND, "", []),
        ("{header: x-session}", SOUND, "", []),
        ("{prefix: {}}", TWO_ENGINES, "", ["SG165"]),
        ("{header: x-request-id}", SOUND, "", ["SG166"]),
        ("{header: X-Envoy-Session}", SOUND, "", ["SG166"]),
        ("{header: session_id}", SOUND, "", ["SG166"]),
        ("{prefix: {}}", SOUND, HEDGED, ["SG167"]),
        ("{mode: strict, header: x-session, moveWithin: 5m}", SOUND, "", []),
        ("{mode: strict, header: x-session}", TWO_ENGINES, "", []),
        ("{mode: strict, header: x-request-id}", SOUND, "", ["SG166"]),
        ("{mode: strict, header: Authorization}", SOUND, "", ["SG166"]),
        ("{header: Authorization}", SOUND, "", []),
        ("{mode: strict, header: x-session, slackPercent: 10}", SOUND, "", ["SG169"]),
        ("{header: x-session, moveWithin: 60s}", SOUND, "", ["SG169"]),
        ("{header: x-session, returnAfter: 60s}", SOUND, "", []),
        ("{mode: strict, header: x-session, returnAfter: 60s}", SOUND, "", ["SG169"]),
    ],
)
def test_affinity_without_effect_draws_warnings(affinity: str, base: str, more: str, codes: list[str]) -> None:
    found = [one for one in lint(loaded(affinity, base=base, more=more)) if one.code.startswith("SG16")]
    assert [one.code for one in found] == codes
    assert all(one.origin is not None and one.origin.line == line_of_affinity(base) for one in found)


@pytest.mark.parametrize(
    ("mine", "others", "said"),
    [
        ("", "slackPercent: 40", "pool chat has slackPercent 10 by route front"),
        ("returnAfter: 5s", "returnAfter: 1m", "pool chat has returnAfter 5s by route front"),
    ],
)
def test_pool_has_the_smallest_settings_of_its_routes(mine: str, others: str, said: str) -> None:
    other = (
        SOUND.partition("---\n")[2]
        .replace("front", "other")
        .replace("pools:", "match: {pathPrefix: /o}\n  pools:")
    )
    more = f"---\n{other}  affinity: {{prefix: {{}}, {others}}}\n"
    [found] = lint(loaded(f"{{prefix: {{}}, {mine}}}" if mine else "{prefix: {}}", more=more))
    assert found.code == "SG168"
    assert f"route other: {said}" in found.message
