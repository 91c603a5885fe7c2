"""TLS settings of a pool: validation and effect."""

import re
from collections.abc import Callable

import pytest

from policies.engine_tls import expression
from policies.findings import PolicyError

Errors = Callable[[str | bytes], list[PolicyError]]

POOL = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: llama
  endpoints: [{address: ADDRESS, port: 8000}]
  tls: TLS
"""


def pool(tls: str, address: str = "10.0.0.1") -> str:
    return POOL.replace("ADDRESS", address).replace("TLS", tls)


@pytest.mark.parametrize(
    ("tls", "path", "said"),
    [
        ("{serverName: x}", "spec.tls.secret", ""),
        ("{secret: ../etc, serverName: x}", "spec.tls.secret", ""),
        ("{secret: /etc/ssl, serverName: x}", "spec.tls.secret", ""),
        ("{secret: a, serverName: 10.0.0.1}", "spec.tls.serverName", "is not a DNS name"),
        ("{secret: a, serverName: '*.x'}", "spec.tls.serverName", "is not a DNS name"),
        ("{secret: a, subjectAltNames: ['a.*.x']}", "spec.tls.subjectAltNames[0]", "neither a DNS name"),
        ("{secret: a, subjectAltNames: ['*']}", "spec.tls.subjectAltNames[0]", "neither a DNS name"),
        ("{secret: a, subjectAltNames: ['spiffe://']}", "spec.tls.subjectAltNames[0]", "is not a URI"),
    ],
)
def test_invalid_tls_field_is_refused_at_its_location(tls: str, path: str, said: str, errors_of: Errors) -> None:
    [error] = errors_of(pool(tls))
    assert error.path == path
    assert said in error.message


@pytest.mark.parametrize(
    ("tls", "address", "codes"),
    [
        ("{secret: a}", "10.0.0.1", ["SG044"]),
        ("{secret: a}", "engine.test", []),
        ("{secret: a, serverName: engine.test}", "10.0.0.1", []),
        ("{secret: a, subjectAltNames: [spiffe://x/engine]}", "10.0.0.1", []),
    ],
)
def test_an_engine_is_always_held_to_a_name(tls: str, address: str, codes: list[str], errors_of: Errors) -> None:
    assert [one.code for one in errors_of(pool(tls, address))] == codes


def test_pods_have_addresses_and_so_no_names(errors_of: Errors) -> None:
    found = pool("{secret: a}").replace(
        "endpoints: [{address: 10.0.0.1, port: 8000}]", "kubernetes: {service: e, port: 1}"
    )
    assert [one.code for one in errors_of(found)] == ["SG044"]


@pytest.mark.parametrize(
    ("alt_name", "yes", "no"),
    [
        ("engine.test", ["engine.test", "ENGINE.test"], ["xengine.test", "engineXtest", "engine.test.evil"]),
        ("*.engine.test", ["a.engine.test", "*.engine.test"], ["engine.test", "a.b.engine.test", ".engine.test"]),
        ("spiffe://x/*", ["spiffe://x/a"], ["spiffe://x/a/b", "spiffe://y/a"]),
        ("spiffe://x/*/c", ["spiffe://x/b/c"], ["spiffe://x/a/b/c"]),
        ("spiffe://x/**", ["spiffe://x/a/b"], ["spiffe://x/", "spiffe://xx/a"]),
    ],
)
def test_patterns_mean_what_they_say(alt_name: str, yes: list[str], no: list[str]) -> None:
    found = re.compile(expression(alt_name))
    assert [one for one in yes if not found.fullmatch(one)] == []
    assert [one for one in no if found.fullmatch(one)] == []
