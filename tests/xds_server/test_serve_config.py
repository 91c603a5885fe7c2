"""Settings that cannot work are refused with a sentence that says why."""

from pathlib import Path

import pytest

from engine.address import ListenAddress
from xds_server.serve_config import ConfigError, ServeConfig, address_of


def test_what_is_no_address_is_said_as_it_was_written() -> None:
    assert address_of("[::1]:1") == ListenAddress("::1", 1)
    with pytest.raises(ConfigError, match="'18000' is not HOST:PORT"):
        address_of("18000")


def test_settings_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--policies"):
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
        ({}, "--policies, or give --kubernetes"),
        ({"policies": (Path("x"),), "kubernetes": True}, "not both"),
        ({"policies": (Path("x"),), "kubeconfig": Path("k")}, "--kubeconfig says something about a cluster"),
        ({"policies": (Path("x"),), "context": "c"}, "--context"),
        ({"policies": (Path("x"),), "namespaces": ("n",)}, "--namespace"),
        ({"policies": (Path("x"),), "selector": "a=b"}, "--selector"),
        ({"policies": (Path("x"),), "identity": "me"}, "--identity"),
        ({"policies": (Path("x"),), "write_status": False}, "--no-write-status"),
        ({"kubernetes": True, "lease": "switchgear"}, "NAMESPACE/NAME"),
        ({"kubernetes": True, "lease": "a/b/c"}, "NAMESPACE/NAME"),
        ({"kubernetes": True, "lease": "/b"}, "NAMESPACE/NAME"),
        ({"kubernetes": True, "namespaces": ("",)}, "--namespace is empty"),
        ({"kubernetes": True, "namespaces": ("ok", "Bad_one")}, "--namespace is 'Bad_one'"),
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
def test_policies_come_from_one_place_and_what_is_said_of_a_cluster_needs_one(
    settings: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        ServeConfig(**settings)


def test_a_cluster_needs_nothing_but_its_name() -> None:
    assert not ServeConfig(kubernetes=True).policies
    ServeConfig(kubernetes=True, lease="fleet/switchgear", namespaces=("a", "b"), write_status=False)


TLS: dict[str, object] = {"tls_cert": Path("c"), "tls_key": Path("k"), "tls_ca": Path("a")}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"listen": ListenAddress("0.0.0.0", 1)}, "--listen 0.0.0.0:1 takes connections of other machines"),
        ({"admin": ListenAddress("10.0.0.1", 1)}, "--admin 10.0.0.1:1"),
        ({"summary": ListenAddress("::", 1), "region": "r"}, "--summary"),
        ({"tls_cert": Path("c")}, "--tls-key is missing"),
        ({**TLS, "tls_ca": None}, "--tls-ca is missing"),
        ({**TLS, "insecure": True}, "give one of them"),
        ({"agent_name": "a"}, "--agent-name says something about TLS"),
        ({"plaintext_agents": ("p",)}, "--plaintext-agents says something about TLS"),
        ({"open_metrics": True}, "opens what nothing closes"),
    ],
)
def test_plain_text_for_other_machines_is_said_out_loud(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ServeConfig(policies=(Path("x"),), **settings)


def test_what_is_secure_or_said_may_listen_everywhere() -> None:
    everywhere = {"listen": ListenAddress("0.0.0.0", 1), "admin": ListenAddress("0.0.0.0", 2)}
    assert ServeConfig(policies=(Path("x"),), **everywhere, insecure=True).tls is None
    secured = ServeConfig(policies=(Path("x"),), **everywhere, **TLS)
    assert secured.tls is not None
    assert secured.tls.authorities == Path("a")


@pytest.mark.parametrize(
    "text",
    ["a=b", "a==b,c!=d", "a", "!a", "x.dev/a in (b, c),d notin (e)", "a=", "a in (b,)", "a_b.c-d = E_1", "! a"],
)
def test_selectors_that_the_api_server_would_take_are_taken(text: str) -> None:
    assert ServeConfig(kubernetes=True, selector=text).selector == text
