"""The prober uses the certificates that the pool names, and follows their rotation."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import MappingProxyType

from chaos.fake_engine import EngineConfig, EngineCrash, EngineHang, FakeEngine
from engine.report import Doubt, Verdict
from engine.tls.certificate_files import read_trust
from engine.tls.paths import TrustFiles
from tests.engine.tls.certificate_fixtures import certificate
from tests.xds_server.engine_health.running_prober import IN, OUT, RunningProber, policies
from xds_server.engine_health.engine_prober import Prober, probe_targets
from xds_server.model.secret import EngineSecret, Secrets

NAME = "engine.example"


def secret(folder: Path, name: str = "engines") -> Secrets:
    """The content of a secrets folder: the CA in ``folder``, under a name."""
    trust = read_trust(TrustFiles(authorities=folder / "ca.crt"))
    return {name: EngineSecret(name=name, authorities=trust.authorities, ends_unix_s=trust.ends_unix_s)}


class TlsProber(RunningProber):
    """A prober over TLS; ``secrets`` may be replaced while it runs."""

    secrets: Secrets = MappingProxyType({})

    def __post_init__(self) -> None:
        for pool in self.policies.pools.values():
            tls = {"secret": "engines", "serverName": NAME}
            spec = pool.spec.model_validate(pool.spec.model_dump(by_alias=True, exclude_none=True) | {"tls": tls})
            self.policies = type(self.policies)(
                pools={"pool": pool.model_copy(update={"spec": spec})},
                routes={},
                policies={},
                effective=self.policies.effective,
            )
        super().__post_init__()
        self.prober = Prober(self._reported, on_probe=self._probed, secrets=lambda: self.secrets)
        self.prober.watch(self.policies)


@contextlib.asynccontextmanager
async def engines(folder: Path, *names: str) -> AsyncIterator[list[FakeEngine]]:
    """One engine for each certificate."""
    made = [
        FakeEngine(
            EngineConfig(prefill_s=0.01, tls_cert=str(folder / f"{one}.crt"), tls_key=str(folder / f"{one}.key"))
        )
        for one in names
    ]
    async with contextlib.AsyncExitStack() as stack:
        for one in made:
            await one.start()
            stack.push_async_callback(one.stop)
        yield made


@contextlib.asynccontextmanager
async def asked(folder: Path, *running: FakeEngine) -> AsyncIterator[TlsProber]:
    watched = TlsProber(policies({f"e{index}": one.port for index, one in enumerate(running)}, interval="100ms"))
    watched.secrets = secret(folder)
    task = asyncio.create_task(watched.prober.run())
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_tls_engines_get_the_same_verdicts_as_plain_http(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", NAME)
    async with engines(tmp_path, "engine", "engine") as (one, two), asked(tmp_path, one, two) as watched:
        await watched.until(lambda: {"e0", "e1"} <= {said.engine for said in watched.reports}, "both are heard")
        assert watched.verdicts() <= {Verdict.READY, Verdict.BUSY}
        await one.set_fault(EngineHang())
        await watched.until(lambda: watched.health("e0") is OUT, "the hang is seen")
        await one.heal()
        await watched.until(lambda: watched.health("e0") is IN, "it is back")
        await two.set_fault(EngineCrash())
        await watched.until(lambda: watched.health("e1") is OUT, "the crash is seen")
        assert watched.said("e1").verdict is Verdict.DEAD  # type: ignore[union-attr]


async def test_certificate_rotation_changes_no_verdict(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", NAME)
    async with engines(tmp_path, "engine") as (one,), asked(tmp_path, one) as watched:
        await watched.until(lambda: bool(watched.reports), "it is heard")
        for _ in range(3):
            certificate(tmp_path, "engine", NAME)
            # A second CA next to the first: all connections are reopened.
            (tmp_path / "more").mkdir(exist_ok=True)
            (tmp_path / "more" / "ca.key").unlink(missing_ok=True)
            (tmp_path / "more" / "ca.crt").unlink(missing_ok=True)
            certificate(tmp_path / "more", "unused", "x")
            both = (tmp_path / "ca.crt").read_bytes() + (tmp_path / "more" / "ca.crt").read_bytes()
            (held,) = secret(tmp_path).values()
            watched.secrets = {
                "engines": EngineSecret(name="engines", authorities=both, ends_unix_s=held.ends_unix_s)
            }
            seen = len(watched.reports)
            await watched.until(lambda seen=seen: len(watched.reports) > seen + 4, "it is heard on")  # type: ignore[misc]
        assert watched.verdicts() <= {Verdict.READY, Verdict.BUSY}
        assert not watched.moves
        assert {outcome for _, outcome in watched.probes} == {"answered"}


async def test_engine_with_a_wrong_certificate_is_ejected_with_reason(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", NAME)
    certificate(tmp_path, "stranger", "stranger.example")
    names = ("engine", "engine", "engine", "stranger")
    async with engines(tmp_path, *names) as running, asked(tmp_path, *running) as watched:
        await watched.until(lambda: watched.health("e3") is OUT, "the stranger is out")
        assert [watched.health(f"e{index}") for index in range(3)] == [IN, IN, IN]
        said = watched.said("e3")
        assert said is not None
        assert (said.verdict, said.doubt) == (Verdict.DEGRADED, Doubt.REFUSED)
        assert f"stranger.example, not for {NAME}" in said.evidence
        certificate(tmp_path, "stranger", NAME)
        await watched.until(lambda: watched.health("e3") is IN, "it proves its name now")


async def test_wrong_ca_bundle_ejects_no_engine(tmp_path: Path) -> None:
    certificate(tmp_path, "engine", NAME)
    certificate(tmp_path / "wrong", "unused", "x")
    async with engines(tmp_path, "engine", "engine", "engine") as running, asked(tmp_path, *running) as watched:
        await watched.until(lambda: len({said.engine for said in watched.reports}) == 3, "all are heard")
        watched.secrets = secret(tmp_path / "wrong")
        await watched.until(lambda: watched.verdicts_of("e0") >= {Verdict.DEGRADED}, "it is not believed")
        seen = len(watched.reports)
        await watched.until(
            lambda: len({said.engine for said in watched.reports[seen:]}) == 3 and len(watched.reports) > seen + 9,
            "all are reported as wrong, repeatedly",
        )
        assert watched.decisions is not None
        assert {watched.health(f"e{index}") for index in range(3)} == {IN}
        (reason, *_) = [one.reason for one in watched.decisions.engines.values()]
        assert "engines agree" in reason
        assert "is from an untrusted CA" in reason
        watched.secrets = {}
        await watched.until(lambda: any(outcome == "ours" for _, outcome in watched.probes), "nothing to ask by")
        assert {watched.health(f"e{index}") for index in range(3)} == {IN}


def test_probes_verify_the_same_identity_as_proxies() -> None:
    made = TlsProber(policies({"e0": 1}))
    ((_, one),) = probe_targets(made.policies).items()
    assert one.secret == "engines"
    assert one.target.name is not None
    assert (one.target.name.server_name, one.target.name.alt_names) == (NAME, ())
    assert str(one.target.url("/metrics")) == "https://127.0.0.1:1/metrics"
