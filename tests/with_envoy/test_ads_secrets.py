"""A real Envoy that refuses a certificate: it says which, goes on with the one before, and takes the next."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from policies.engine_tls import EngineTls
from xds_server.access.lab_authority import Wanted, make
from xds_server.publish import Scope
from xds_server.secrets.secret import EngineSecret
from xds_server.snapshot import Resource, resource
from xds_server.translate.engine_tls import authorities, certificate, tls_socket
from xds_server.type_urls import SECRET

from .test_ads_envoy import Plane, bootstrap, cluster, endpoints, plane, runtime, until  # noqa: F401  # a fixture

pytestmark = pytest.mark.envoy

TLS = EngineTls.model_validate({"secret": "s", "serverName": "engine"})
NO_AUTHORITIES = b"-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n"
NO_KEY = b"-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n"


def secrets(folder: Path, *, usable: bool = True) -> list[Resource]:
    """New authorities, and a new certificate of them; its key is one that only Envoy finds out to be none."""
    make(folder, [Wanted(name="tls", path="proxy")], lasts=timedelta(days=30))
    trusted, chain, key = ((folder / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key"))
    secret = EngineSecret(name="s", authorities=trusted, ends_unix_s=0)
    shown = certificate("s", chain, key if usable else NO_KEY)
    return [resource(SECRET, one.name, bytes(one)) for one in (authorities(secret), shown)]


@pytest.mark.parametrize("api", ["DELTA_GRPC", "GRPC"])
async def test_a_refused_certificate_is_known_and_stands_in_no_others_way(
    api: str,
    plane: Plane,  # noqa: F811
    start_envoy: Any,
    tmp_path: Path,
) -> None:
    socket = tls_socket(TLS, certified=True)
    rest = [runtime(), cluster("c", transport_socket=socket), endpoints("c", [1])]
    plane.serve(*rest, *secrets(tmp_path / "one"))
    await plane.start()
    envoy = await start_envoy(bootstrap(plane.port, api=api))

    async def contexts() -> int:
        """How often Envoy has begun to use other certificates."""
        return sum((await envoy.stats("cluster.c.client_ssl_socket_factory.ssl_context_update_by_sds")).values())

    await until(lambda: plane.settled() and "n1/SDS" in plane.states(), "settled")
    plane.seen.pushes.clear()
    plane.serve(*rest, *secrets(tmp_path / "two", usable=False))
    # The authorities, the certificate, and the certificate before it.
    await until(lambda: plane.seen.pushes == ["SDS"] * 3, "refused, and rolled back")
    await until(
        lambda: not any(kind.unacked for one in plane.publisher.proxies() for kind in one.types), "answered"
    )
    before = await contexts()
    assert plane.states()["n1/SDS"] == "NACK"
    (nack,) = plane.seen.nacks
    assert (nack.scope, [one.name for one in nack.resources]) == (Scope.PEER, ["s/certificate"])
    plane.serve(*rest, *secrets(tmp_path / "three"))
    await until(plane.settled, "settled")
    assert len(plane.seen.nacks) == 1
    assert await contexts() == before + 2


async def test_a_certificate_that_comes_to_bad_authorities_is_in_use_once_those_are_mended(
    plane: Plane,  # noqa: F811
    start_envoy: Any,
    tmp_path: Path,
) -> None:
    rest = [runtime(), cluster("c", transport_socket=tls_socket(TLS, certified=True)), endpoints("c", [1])]
    trusted, shown = secrets(tmp_path / "one")
    bad = authorities(EngineSecret(name="s", authorities=NO_AUTHORITIES, ends_unix_s=0))
    plane.serve(*rest)
    await plane.start()
    envoy = await start_envoy(bootstrap(plane.port))
    await until(lambda: "n1/SDS" in plane.states(), "asked for both")
    await until(plane.settled, "settled, without them")
    # Envoy takes the first of the two unseen, and then speaks of it when it refuses the second.
    plane.serve(*rest, resource(SECRET, bad.name, bytes(bad)), shown)
    await until(lambda: bool(plane.seen.nacks), "refused")
    (nack,) = plane.seen.nacks
    assert [one.name for one in nack.resources] == ["s/authorities"], nack.reason
    plane.serve(*rest, trusted, shown)
    await until(plane.settled, "settled")
    assert sum((await envoy.stats("cluster.c.client_ssl_socket_factory.ssl_context_update_by_sds")).values()) > 0
    assert len(plane.seen.nacks) == 1
