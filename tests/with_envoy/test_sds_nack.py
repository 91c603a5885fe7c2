"""A real Envoy refuses a certificate: it names it, keeps the previous one, and accepts the next."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from policies.engine_tls import EngineTls
from tests.with_envoy.test_ads_nack_and_make_before_break import (  # noqa: F401  # a fixture
    Plane,
    bootstrap,
    cluster,
    endpoints,
    plane,
    runtime,
    until,
)
from xds_server.auth.lab_ca import LabCertificate, make_certificates
from xds_server.model.secret import EngineSecret
from xds_server.model.snapshot import Resource, resource
from xds_server.model.type_urls import SECRET
from xds_server.publish import RollbackScope
from xds_server.translate.upstream_tls import certificate_secret, trusted_ca_secret, upstream_tls_socket

pytestmark = pytest.mark.envoy

TLS = EngineTls.model_validate({"secret": "s", "serverName": "engine"})
NO_AUTHORITIES = b"-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n"
NO_KEY = b"-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n"


def secrets(folder: Path, *, usable: bool = True) -> list[Resource]:
    """New authorities, and a new certificate of them; its key is one that only Envoy finds out to be none."""
    make_certificates(folder, [LabCertificate(name="tls", path="proxy")], lasts=timedelta(days=30))
    trusted, chain, key = ((folder / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key"))
    secret = EngineSecret(name="s", authorities=trusted, ends_unix_s=0)
    shown = certificate_secret("s", chain, key if usable else NO_KEY)
    return [resource(SECRET, one.name, bytes(one)) for one in (trusted_ca_secret(secret), shown)]


@pytest.mark.parametrize("api", ["DELTA_GRPC", "GRPC"])
async def test_nacked_sds_certificate_is_identified_and_blocks_no_other(
    api: str,
    plane: Plane,  # noqa: F811
    start_envoy: Any,
    tmp_path: Path,
) -> None:
    socket = upstream_tls_socket(TLS, certified=True)
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
    assert (nack.scope, [one.name for one in nack.resources]) == (RollbackScope.PEER, ["s/certificate"])
    plane.serve(*rest, *secrets(tmp_path / "three"))
    await until(plane.settled, "settled")
    assert len(plane.seen.nacks) == 1
    assert await contexts() == before + 2


async def test_sds_certificate_is_served_once_its_bad_ca_is_fixed(
    plane: Plane,  # noqa: F811
    start_envoy: Any,
    tmp_path: Path,
) -> None:
    rest = [
        runtime(),
        cluster("c", transport_socket=upstream_tls_socket(TLS, certified=True)),
        endpoints("c", [1]),
    ]
    trusted, shown = secrets(tmp_path / "one")
    bad = trusted_ca_secret(EngineSecret(name="s", authorities=NO_AUTHORITIES, ends_unix_s=0))
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
