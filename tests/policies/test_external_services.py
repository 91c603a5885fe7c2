"""Services that listeners name: what is refused, and where."""

from pathlib import Path

import pytest

from policies.findings import PolicyErrors
from policies.load import load_contents
from xds_server.admin.server_info import optional_extensions

POOL = """
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: p}
spec: {model: m, endpoints: [{address: 10.0.0.1, port: 8000}]}
"""


def route(name: str, listener: str, *, more: str = "") -> str:
    return f"""---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: {name}}}
spec:
  listener: {{port: 8080, {listener}}}
  match: {{model: {name}}}
  pools: [{{pool: p}}]
  {more}
"""


def errors(*routes: str) -> list[tuple[str, str, str]]:
    """Code, path and message of each problem."""
    with pytest.raises(PolicyErrors) as caught:
        load_contents({Path("p.yaml"): "".join((POOL, *routes)).encode()})
    return [(one.code, one.path, one.message) for one in caught.value.exceptions]


def test_service_at_an_ip_address_needs_a_name_to_verify() -> None:
    [(code, path, message)] = errors(route("a", "accessLogCollector: {address: 10.0.0.9, port: 4317, tls: {}}"))
    assert (code, path) == ("SG044", "spec.listener.accessLogCollector.tls")
    assert message == "no name to verify in the certificate of 10.0.0.9"


def test_routes_of_one_port_name_the_same_collector() -> None:
    one, two = (route(name, f"accessLogCollector: {{address: {name}, port: 4317}}") for name in ("a", "b"))
    [(code, path, message)] = errors(one, two)
    assert (code, path) == ("SG036", "spec.listener.accessLogCollector")
    assert message == "port 8080 has another accessLogCollector in route a, at p.yaml:11:13"
    found = errors(one, route("b", "accessLogFile: /var/log/envoy/b"))
    assert {path for _, path, _ in found} == {"spec.listener.accessLogCollector", "spec.listener.accessLogFile"}


@pytest.mark.parametrize("path", ["/etc/passwd", "/var/log/envoy/../x", "/var/log/envoy/.x", "/var/log/envoy/a/b"])
def test_log_file_outside_of_its_folder_is_refused(path: str) -> None:
    [(code, where, _)] = errors(route("a", f"accessLogFile: {path}"))
    assert (code, where) == ("SG026", "spec.listener.accessLogFile")


def test_extensions_are_required_only_where_they_are_used() -> None:
    loaded = load_contents({Path("p.yaml"): (POOL + route("a", "accessLogFile: /var/log/envoy/x")).encode()})
    assert optional_extensions(loaded.routes.values()) == ("envoy.access_loggers.file",)
    assert optional_extensions(()) == ()


KEYS = """localJwks: {inline: '{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}'}"""


def jwt(fields: str = KEYS) -> str:
    return f"jwt: {{providers: [{{name: idp, issuer: i, {fields}}}]}}"


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ("audiences: [a]", "spec.listener.jwt.providers[0]"),
        (KEYS + ", remoteJwks: {uri: 'https://a.test'}", "spec.listener.jwt.providers[0]"),
        ("localJwks: {}", "spec.listener.jwt.providers[0].localJwks"),
        ("localJwks: {file: /etc/passwd}", "spec.listener.jwt.providers[0].localJwks.file"),
        ("localJwks: {inline: '{}'}", "spec.listener.jwt.providers[0].localJwks.inline"),
        ("""localJwks: {inline: '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}'}""",
         "spec.listener.jwt.providers[0].localJwks.inline"),
        ("remoteJwks: {uri: 'ftp://a.test'}", "spec.listener.jwt.providers[0].remoteJwks.uri"),
        ("remoteJwks: {uri: 'https://user@a.test'}", "spec.listener.jwt.providers[0].remoteJwks.uri"),
        ("remoteJwks: {uri: 'https://10.0.0.1/keys'}", "spec.listener.jwt.providers[0].remoteJwks.tls"),
        (KEYS + ", claimToHeaders: [{claim: a, header: x-envoy-a}]",
         "spec.listener.jwt.providers[0].claimToHeaders[0].header"),
        (KEYS + ", claimToHeaders: [{claim: a, header: host}]",
         "spec.listener.jwt.providers[0].claimToHeaders[0].header"),
    ],
)  # fmt: skip
def test_unusable_provider_is_refused(fields: str, where: str) -> None:
    assert {path for _, path, _ in errors(route("a", jwt(fields)))} == {where}


def test_public_route_shares_no_path_with_a_route_that_reads_bodies() -> None:
    public = route("a", jwt(), more="public: true").replace("match: {model: a}", "match: {pathPrefix: /v1}")
    [(code, where, _)] = errors(public, route("b", jwt()))
    assert (code, where) == ("SG045", "spec.public")
    [(code, where, _)] = errors(route("a", jwt(), more="public: true"))
    assert (code, where) == ("SG040", "spec.public")
    other = route("b", jwt()).replace("match: {", "match: {pathPrefix: /v2, ")
    load_contents({Path("p.yaml"): "".join((POOL, public, other)).encode()})
