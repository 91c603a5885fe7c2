"""Invalid settings are rejected with a reason."""

from pathlib import Path

import pytest

from engine.address import ListenAddress
from xds_server.serve_config import ConfigError, ServeConfig, address_of


def test_invalid_address_is_quoted() -> None:
    assert address_of("[::1]:1") == ListenAddress("::1", 1)
    with pytest.raises(ConfigError, match="'18000' is not HOST:PORT"):
        address_of("18000")


def test_invalid_settings_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="-f"):
        ServeConfig(policies=())
    with pytest.raises(ConfigError, match="--poll"):
        ServeConfig(policies=(tmp_path,), poll_s=0)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="not a folder"):
        ServeConfig(policies=(tmp_path,), state_dir=tmp_path / "file")
    for place in ("file", "missing"):
        with pytest.raises(ConfigError, match=rf"--secrets .*{place} is not a folder"):
            ServeConfig(policies=(tmp_path,), secrets=tmp_path / place)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "set -f FILE|DIR or --kubernetes"),
        ({"policies": (Path("x"),), "kubernetes": True}, "exclude each other"),
        ({"policies": (Path("x"),), "kubeconfig": Path("k")}, "--kubeconfig requires --kubernetes"),
        ({"policies": (Path("x"),), "context": "c"}, "--kube-context"),
        ({"policies": (Path("x"),), "namespaces": ("n",)}, "--namespace"),
        ({"policies": (Path("x"),), "selector": "a=b"}, "--selector"),
        ({"policies": (Path("x"),), "identity": "me"}, "--identity"),
        ({"policies": (Path("x"),), "write_status": False}, "--no-write-status"),
        ({"kubernetes": True, "lease": "switchgear"}, "NAMESPACE/NAME"),
        ({"kubernetes": True, "lease": "a/b/c"}, "NAMESPACE/NAME"),
        ({"kubernetes": True, "lease": "/b"}, "NAMESPACE/NAME"),
        ({"kubernetes": True, "namespaces": ("",)}, "--namespace is empty"),
        ({"kubernetes": True, "namespaces": ("ok", "Bad_one")}, "--namespace 'Bad_one' is invalid"),
        ({"kubernetes": True, "namespaces": ("a" * 64,)}, "at most 63"),
        *(
            ({"kubernetes": True, "selector": text}, "--selector has")
            for text in (
                "a in (",
                "a in b",
                "a=b,",
                ",",
                "a=b=c",
                "a b",
                "a==ä",
                "=b",
                "a notin (b,c",
                "x" + "/y" * 2,
            )
        ),
    ],
)
def test_policies_have_one_source_and_cluster_flags_require_kubernetes(
    settings: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        ServeConfig(**settings)


def test_kubernetes_requires_no_other_flags() -> None:
    assert not ServeConfig(kubernetes=True).policies
    ServeConfig(kubernetes=True, lease="fleet/switchgear", namespaces=("a", "b"), write_status=False)


TLS: dict[str, object] = {"tls_cert": Path("c"), "tls_key": Path("k"), "tls_ca": Path("a")}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"listen": ListenAddress("0.0.0.0", 1)}, "--listen 0.0.0.0:1 accepts unauthenticated plaintext"),
        ({"admin": ListenAddress("10.0.0.1", 1)}, "--admin 10.0.0.1:1"),
        ({"summary": ListenAddress("::", 1), "region": "r"}, "--summary"),
        ({"tls_cert": Path("c")}, "--tls-key is missing"),
        ({**TLS, "tls_ca": None}, "--tls-ca is missing"),
        ({**TLS, "insecure": True}, "remove one of them"),
        ({"agent_name": "a"}, "--agent-name requires --tls-cert"),
        ({"plaintext_agents": ("p",)}, "--plaintext-agents requires --tls-cert"),
        ({"open_metrics": True}, "--open-metrics requires --access"),
        ({"trust_loopback": True}, "--trust-loopback requires --tls-cert"),
    ],
)
def test_plaintext_for_other_machines_requires_insecure(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ServeConfig(policies=(Path("x"),), **settings)


def test_tls_or_insecure_may_listen_on_all_addresses() -> None:
    everywhere = {"listen": ListenAddress("0.0.0.0", 1), "admin": ListenAddress("0.0.0.0", 2)}
    assert ServeConfig(policies=(Path("x"),), **everywhere, insecure=True).tls is None
    secured = ServeConfig(policies=(Path("x"),), **everywhere, **TLS)
    assert secured.tls is not None
    assert secured.tls.authorities == Path("a")


@pytest.mark.parametrize(
    "text",
    ["a=b", "a==b,c!=d", "a", "!a", "x.dev/a in (b, c),d notin (e)", "a=", "a in (b,)", "a_b.c-d = E_1", "! a"],
)
def test_selector_accepts_kubernetes_syntax(text: str) -> None:
    assert ServeConfig(kubernetes=True, selector=text).selector == text
