"""Authorization rules for proxies and admin users."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tls.identity_patterns import matches
from policies.findings import PolicyErrors
from xds_server.auth.access_rules import Access, AdminRole
from xds_server.auth.authorization import Denial, Principal, ProxyGrant, authorize_proxy, principal_of
from xds_server.auth.rules_file import read_access

RULES = """
apiVersion: switchgear.dev/v1alpha1
kind: Access
metadata: {name: access}
spec:
  proxies:
    - identity: spiffe://prod/ns/*/sa/gateway
      nodes: ["gateway-*"]
    - identity: spiffe://prod/ns/chat/**
      nodes: ["*"]
      pools: [chat]
      zones: [a, b]
  admin:
    - {identity: spiffe://prod/ns/sre/sa/*, role: write}
    - {tokenFile: robot.token, name: robot}
"""


def rules(tmp_path: Path, text: str = RULES) -> Access:
    path = tmp_path / "access.yaml"
    path.write_text(text)
    return read_access(path)


GATEWAY = "spiffe://prod/ns/edge/sa/gateway"
CHAT = "spiffe://prod/ns/chat/sa/client"


def test_proxy_authorization_follows_its_rule(tmp_path: Path) -> None:
    access = rules(tmp_path)
    assert authorize_proxy(access, [GATEWAY], "gateway-1", "z") == ProxyGrant(identity=GATEWAY)
    assert authorize_proxy(access, [CHAT], "app-7", "a") == ProxyGrant(identity=CHAT, pools=frozenset({"chat"}))


@pytest.mark.parametrize(
    ("identities", "node", "zone", "expected"),
    [
        ([], "gateway-1", "a", "a peer without certificate may not connect as a proxy"),
        (["spiffe://other/ns/edge/sa/gateway"], "gateway-1", "a", "may not connect as a proxy"),
        ([GATEWAY], "app-1", "a", "may not be node 'app-1' in zone 'a'"),
        ([CHAT], "app-1", "c", "may not be node 'app-1' in zone 'c'"),
        (["spiffe://prod/ns/edge/more/sa/gateway"], "gateway-1", "a", "may not connect as a proxy"),
        (["spiffe://prod/ns/chat"], "x", "a", "may not connect as a proxy"),
    ],
)
def test_unlisted_identity_is_denied(
    tmp_path: Path, identities: list[str], node: str, zone: str, expected: str
) -> None:
    refused = authorize_proxy(rules(tmp_path), identities, node, zone)
    assert isinstance(refused, Denial)
    assert expected in refused.reason


def test_later_authorization_rule_applies_where_an_earlier_does_not_match(tmp_path: Path) -> None:
    both = "spiffe://prod/ns/chat/sa/gateway"
    assert authorize_proxy(rules(tmp_path), [both], "gateway-1", "a") == ProxyGrant(identity=both)
    assert authorize_proxy(rules(tmp_path), [both], "app-1", "a") == ProxyGrant(
        identity=both, pools=frozenset({"chat"})
    )


def test_admin_authorization_by_role(tmp_path: Path) -> None:
    access = rules(tmp_path)
    tokens = {rule: "secret" for rule in access.spec.admin if rule.token_file}
    sre = "spiffe://prod/ns/sre/sa/ann"
    assert principal_of(access, [sre], "", tokens) == Principal(name=sre, role=AdminRole.WRITE)
    assert principal_of(access, [], "secret", tokens) == Principal(name="robot", role=AdminRole.READ)
    assert principal_of(access, [], "wrong", tokens) is None
    assert principal_of(access, [], "", tokens) is None
    assert principal_of(access, [GATEWAY], "", tokens) is None


def test_empty_token_file_authenticates_no_caller(tmp_path: Path) -> None:
    access = rules(tmp_path)
    assert principal_of(access, [], "", dict.fromkeys(access.spec.admin, "")) is None
    assert principal_of(access, [], "x", {}) is None


TEXT = st.text(alphabet="ab/.*", max_size=12)


@given(TEXT, TEXT)
def test_star_does_not_match_a_slash(pattern: str, text: str) -> None:
    if "**" in pattern or not matches(pattern, text):
        return
    assert pattern.count("/") == text.count("/")
    assert re.sub(r"\*", "", pattern).count("a") <= text.count("a")


@given(st.text(max_size=30))
def test_pattern_without_star_matches_exactly(text: str) -> None:
    if "*" not in text:
        assert matches(text, text)
        assert not matches(text, text + "x")


@pytest.mark.parametrize(
    ("edit", "place", "expected"),
    [
        (("identity: spiffe://prod/ns/chat/**", "identity: 7"), ":9:", "spec.proxies[1].identity"),
        (("zones: [a, b]", "zone: [a, b]"), ":12:", "did you mean zones?"),
        (("role: write", "role: admin"), ":14:", "spec.admin[0].role"),
        (("tokenFile: robot.token, ", ""), ":15:", "set either identity or tokenFile"),
        (('nodes: ["gateway-*"]', "nodes: []"), ":8:", "spec.proxies[0].nodes"),
        (("kind: Access", "kind: EnginePool"), ":3:", "kind"),
    ],
)
def test_invalid_rules_are_reported_with_their_origin(
    tmp_path: Path, edit: tuple[str, str], place: str, expected: str
) -> None:
    assert edit[0] in RULES
    with pytest.raises(PolicyErrors) as refusal:
        rules(tmp_path, RULES.replace(*edit))
    told = [f"{error} {error.hint}" for error in refusal.value.exceptions]  # type: ignore[attr-defined]
    assert any(place in one and expected in one for one in told), told


@pytest.mark.parametrize("text", ["", "# nothing\n", RULES + "---" + RULES])
def test_rules_file_has_exactly_one_document(tmp_path: Path, text: str) -> None:
    with pytest.raises(PolicyErrors):
        rules(tmp_path, text)


def test_missing_rules_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PolicyErrors):
        read_access(tmp_path / "nowhere.yaml")
