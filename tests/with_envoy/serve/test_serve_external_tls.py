"""TLS from a real Envoy to a collector, with the CA bundle that a listener names, delivered by SDS."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from tests.with_envoy.otlp_log_receiver import receiving
from tests.with_envoy.serve.conftest import Site, eventually
from tests.with_envoy.serve.test_serve_listener_tls import write
from xds_server.auth.lab_ca import LabCertificate, make_certificates

pytestmark = pytest.mark.envoy

NAME = "collector.test"


async def test_collector_is_verified_with_the_named_ca(site: Site, tmp_path: Path) -> None:
    """Records arrive only once the listener requires the name in the collector's certificate."""
    certificate = LabCertificate(name="server", path="c", names=(NAME,))
    make_certificates(tmp_path / "made", [certificate], lasts=timedelta(days=30))
    secret = tmp_path / "secrets" / "collectors"
    secret.mkdir(parents=True)
    shutil.copy(tmp_path / "made" / "ca.crt", secret / "ca.crt")
    await site.start_engines(1)
    async with receiving(tmp_path / "made") as collector:

        def listener(name: str) -> dict[str, object]:
            tls = {"secret": "collectors", "serverName": name}
            return {"accessLogCollector": {"address": "127.0.0.1", "port": collector.port, "tls": tls}}

        write(site, listener("other.test"))
        await site.serve("--secrets", str(secret.parent))
        envoy = await site.envoy("n1")
        await site.answered()
        cluster = f"cluster.port-{site.port}/accessLogCollector.ssl.fail_verify_san"

        async def refused() -> bool:
            return (await envoy.stats(cluster)).get(cluster, 0) > 0

        await eventually(refused, "a certificate with another name is refused")
        assert not collector.records
        before = (await envoy.stats("listener_manager."))["listener_manager.listener_modified"]
        write(site, listener(NAME))

        async def logged() -> bool:
            assert (await site.ask())[0] == 200
            return bool(collector.records)

        await eventually(logged, "records at the collector")
        after = (await envoy.stats("listener_manager."))["listener_manager.listener_modified"]
        assert after == before, "an edit of the service adds no listener"
