"""TLS to engines: names in clusters, certificates in secrets, keys only with permission."""

import pytest
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import Secret

from xds_server.model.fleet import declared
from xds_server.model.memo import Memo
from xds_server.model.secret import NO_CERTIFICATES, Certificates, EngineSecret
from xds_server.model.type_urls import CLUSTER, ENDPOINT, SECRET
from xds_server.model.view import View
from xds_server.reconcile.assembler import assemble
from xds_server.translate.envoy_json import as_yaml
from xds_server.translate.view_resources import translate

CHAIN, KEY = b"the chain", b"the very private key"
KEYS, CUTS = View(keys=True), View(keys=True, cuts=True)


def secret(name="s", *, authorities=b"the authorities", chain=CHAIN, key=KEY):
    return EngineSecret(name=name, authorities=authorities, chain=chain, key=key, ends_unix_s=1e12)


def certificates(*secrets, certified=()):
    return Certificates(secrets={one.name: one for one in secrets}, certified=frozenset(certified))


def pool(name="p", tls="{secret: s, serverName: engine.test}", address="10.0.0.1"):
    return (
        f"kind: EnginePool\nmetadata: {{name: {name}}}\n"
        f"spec: {{model: m, endpoints: [{{address: {address}, port: 1, name: e}}], tls: {tls}}}"
    )


@pytest.fixture
def made(policies, decided):
    """Snapshot of these documents."""

    def make(*documents, view=KEYS, with_=None, memo=None):
        policy_set = policies(*documents)
        fleet = declared(policy_set)
        known = certificates(secret()) if with_ is None else with_
        return assemble(translate(policy_set, fleet, decided(fleet), view, memo or Memo(), certificates=known))

    return make


def context(snapshot, name="p"):
    """TLS context of a cluster, at any nesting."""
    socket = Cluster.parse(snapshot.of(CLUSTER)[name].value).transport_socket
    if socket.name == "envoy.transport_sockets.internal_upstream":
        socket = socket.typed_config.unpack().transport_socket
    assert socket.name == "envoy.transport_sockets.tls"
    return socket.typed_config.unpack()


def asked(found):
    """Kinds and texts of the accepted certificate names."""
    default = found.common_tls_context.combined_validation_context.default_validation_context
    return [
        (one.san_type.name, one.matcher.exact or one.matcher.safe_regex.regex)
        for one in default.match_typed_subject_alt_names
    ]


@pytest.mark.parametrize("view", [KEYS, CUTS], ids=["direct", "through a hop"])
def test_clusters_name_certificates_and_secrets_hold_them(made, view):
    served = made(pool(), view=view)
    found = context(served).common_tls_context
    assert found.tls_certificate_sds_secret_configs[0].name == "s/certificate"
    assert found.combined_validation_context.validation_context_sds_secret_config.name == "s/authorities"
    assert found.alpn_protocols == ["http/1.1"]
    assert found.tls_params.tls_minimum_protocol_version.name == "TLSv1_2"
    assert found.tls_params.tls_maximum_protocol_version.name == "TLSv1_3"
    secrets = {name: Secret.parse(one.value) for name, one in served.of(SECRET).items()}
    assert secrets.keys() == {"s/authorities", "s/certificate"}
    assert secrets["s/authorities"].validation_context.trusted_ca.inline_bytes == b"the authorities"
    assert secrets["s/certificate"].tls_certificate.private_key.inline_bytes == KEY
    if view is CUTS:
        assert Cluster.parse(served.of(CLUSTER)["hop/p"].value).transport_socket is None


@pytest.mark.parametrize("view", [KEYS, CUTS], ids=["direct", "through a hop"])
def test_rotation_changes_secrets_only(made, view):
    before = made(pool(), view=view)
    after = made(pool(), view=view, with_=certificates(secret(authorities=b"b", chain=b"c", key=b"k")))
    changed = {
        url
        for url, by_name in before.resources.items()
        if {name: one.version for name, one in by_name.items()}
        != {name: one.version for name, one in after.of(url).items()}
    }
    assert changed == {SECRET}


def test_server_name_is_sent_and_verified(made):
    found = context(made(pool()))
    assert (found.sni, found.auto_host_sni, found.auto_sni_san_validation) == ("engine.test", False, False)
    assert asked(found) == [("DNS", "engine.test")]


def test_subject_alt_names_override_the_server_name(made):
    found = context(
        made(pool(tls="{secret: s, serverName: a.test, subjectAltNames: ['*.b', 'spiffe://c/d/*', e]}"))
    )
    assert found.sni == "a.test"
    assert asked(found) == [("DNS", r"(?i)[^.]+\.b"), ("URI", "spiffe://c/d/[^/]*"), ("DNS", "e")]


def endpoint(snapshot):
    [locality] = ClusterLoadAssignment.parse(snapshot.of(ENDPOINT)["p"].value).endpoints
    return locality.lb_endpoints[0].endpoint


@pytest.mark.parametrize("view", [KEYS, CUTS], ids=["direct", "through a hop"])
def test_engine_host_name_is_verified_by_default(made, view):
    # Stands for an address resolved earlier.
    served = made(pool(tls="{secret: s}", address="e1.test."), view=view)
    found = context(served)
    assert (found.sni, found.auto_host_sni, found.auto_sni_san_validation) == ("", True, True)
    assert asked(found) == []
    assert endpoint(served).hostname == "e1.test"
    assert endpoint(made(pool(address="e1.test"), view=view)).hostname == ""


def test_private_keys_need_permission(made):
    served = made(pool(), view=View())
    assert served.of(SECRET).keys() == {"s/authorities"}
    assert KEY not in b"".join(one.value for of in served.resources.values() for one in of.values())
    # The cluster is equal for all: without a certificate, engines that require one refuse.
    assert served.of(CLUSTER)["p"].version == made(pool()).of(CLUSTER)["p"].version


def test_a_view_is_sent_the_secrets_of_its_pools_only(made):
    both = (pool(), pool("q", "{secret: t, serverName: x}"), pool("r", "{secret: gone, serverName: x}"))
    known = certificates(secret(), secret("t"), secret("unused"))
    everything = {"s/authorities", "s/certificate", "t/authorities", "t/certificate"}
    assert made(*both, with_=known).of(SECRET).keys() == everything
    mine = View(keys=True, pools=frozenset({"q"}), allowed=frozenset({"q"}))
    assert made(*both, view=mine, with_=known).of(SECRET).keys() == {"t/authorities", "t/certificate"}


def test_proxy_without_certificate_presents_none(made):
    served = made(pool(), with_=certificates(secret(chain=None, key=None)))
    assert not context(served).common_tls_context.tls_certificate_sds_secret_configs
    assert served.of(SECRET).keys() == {"s/authorities"}


def test_unreadable_secret_leaves_the_cluster_unchanged(made):
    for now, before in (
        (secret(), certificates(certified=["s"])),
        (secret(chain=None, key=None), NO_CERTIFICATES),
    ):
        first, second = made(pool(), with_=certificates(now)), made(pool(), with_=before)
        assert first.of(CLUSTER)["p"].version == second.of(CLUSTER)["p"].version
        assert not second.of(SECRET)


def test_grpc_client_gets_no_tls_settings(made):
    served = made(pool(), view=View(role="grpc"))
    assert Cluster.parse(served.of(CLUSTER)["p"].value).transport_socket is None
    assert not served.of(SECRET)


def test_private_keys_appear_in_no_repr_or_rendering(policies, decided):
    policy_set = policies(pool())
    fleet = declared(policy_set)
    items = translate(policy_set, fleet, decided(fleet), KEYS, certificates=certificates(secret()))
    assert any(item.name == "s/certificate" for item in items)
    for shown in (repr(items), as_yaml(items), repr(assemble(items)), repr(certificates(secret()))):
        assert KEY.decode() not in shown
        assert "dGhlIHZlcnkgcHJpdmF0ZSBrZXk" not in shown


def test_items_stay_the_same_while_nothing_changes(policies, decided):
    policy_set, memo = policies(pool()), Memo()
    fleet, known = declared(policy_set), certificates(secret())
    first, second = (
        translate(policy_set, fleet, decided(fleet), KEYS, memo, certificates=known) for _ in range(2)
    )
    assert all(one is other for one, other in zip(first, second, strict=True) if one.type_url in (CLUSTER, SECRET))
