"""A missing secret is an error at its origin; withheld keys are reported with a reason."""

import shutil
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from engine.address import ListenAddress
from policies.load import load_contents
from policies.model import PolicySet
from xds_server.admin_api.status_types import FileDefect
from xds_server.auth.lab_ca import LabCertificate, make_certificates
from xds_server.model.policy_state import ServingPolicies
from xds_server.model.view import View
from xds_server.secrets.distribution import SecretDistributor
from xds_server.serve_config import ServeConfig

POLICIES = """
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: p}
spec: {model: m, endpoints: [{address: 10.0.0.1, port: 1}], tls: {secret: engines, serverName: e}}
---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: plain}
spec: {model: m, endpoints: [{address: 10.0.0.2, port: 1}]}
"""


def policies() -> PolicySet:
    return load_contents({Path("p.yaml"): POLICIES.encode()})


def put(folder: Path, *, client: bool = True) -> None:
    made = folder.parent / "made"
    make_certificates(made, [LabCertificate(name="tls", path="proxy")], lasts=timedelta(days=30))
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("ca.crt", *(("tls.crt", "tls.key") if client else ())):
        shutil.copy(made / name, folder / name)


class FakeServer:
    """Server state: no served policies and no proxies at first."""

    def __init__(self, folder: Path | None, *, secure: bool = False) -> None:
        self.serving: ServingPolicies | None = None
        self.nodes: Mapping[str, View] = {}
        self.pending_policies: tuple[PolicySet, ...] = ()
        tls = {f"tls_{one}": Path(one) for one in ("cert", "key", "ca")} if secure else {}
        listen = ListenAddress("0.0.0.0", 0)
        config = ServeConfig(policies=(Path(),), secrets=folder, insecure=not secure, listen=listen, **tls)  # type: ignore[arg-type]
        self.entrusted = SecretDistributor(config, lambda: self.nodes)
        self.entrusted.follow(self)

    def serve(self) -> None:
        self.serving = ServingPolicies(policies=policies(), texts={}, digest="d", stale=False)

    @property
    def withheld(self) -> Mapping[str, float]:
        return {
            sample.labels["reason"]: sample.value
            for family in self.entrusted.families()
            if family.name == "switchgear_secrets_withheld"
            for sample in family.samples
            if sample.value
        }

    @property
    def sentences(self) -> list[str]:
        return [one.sentence for one in self.entrusted.file_problems() if one.defect is FileDefect.WITHHELD]


def test_missing_secret_is_an_error_until_it_exists(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    around = FakeServer(folder)
    [error] = around.entrusted.errors(policies())
    assert str(error).startswith("p.yaml:5:")
    assert "spec.tls.secret: unusable secret engines: no folder" in str(error)
    put(folder / "engines")
    around.entrusted.folder.poll()
    around.entrusted.folder.poll()
    assert around.entrusted.errors(policies()) == ()
    [without] = FakeServer(None).entrusted.errors(policies())
    assert "without --secrets" in without.message


def test_certified_secrets_survive_a_restart(tmp_path: Path) -> None:
    put(tmp_path / "secrets" / "engines")
    around = FakeServer(tmp_path / "secrets")
    assert around.entrusted.certified() == ()
    around.serve()
    assert around.entrusted.certified() == ("engines",)
    again = FakeServer(None)
    assert not again.entrusted.certificates().has_certificate("engines")
    again.entrusted.restore(["engines"])
    assert again.entrusted.certificates().has_certificate("engines")
    put(tmp_path / "other" / "engines", client=False)
    now = FakeServer(tmp_path / "other")
    now.entrusted.restore(["engines"])
    assert not now.entrusted.certificates().has_certificate("engines")
    assert now.entrusted.certificates() is now.entrusted.certificates()


@pytest.mark.parametrize(
    ("secure", "view", "reason"),
    [
        (False, View(), "plaintext"),
        (True, View(), "nameless"),
        (True, View(role="grpc"), "grpc"),
        (True, View(keys=True), ""),
        (True, View(pools=frozenset({"plain"})), ""),
    ],
)
def test_withheld_keys_are_reported_once_with_a_reason(
    tmp_path: Path, secure: bool, view: View, reason: str
) -> None:
    put(tmp_path / "secrets" / "engines")
    around = FakeServer(tmp_path / "secrets", secure=secure)
    around.serve()
    around.nodes = {"n1": view, "n2": view}
    assert around.withheld == ({reason: 2.0} if reason else {})
    with capture_logs() as logs:
        told = [around.sentences for _ in range(3)]
    assert told[0] == told[2]
    assert len([one for one in logs if one["event"] == "secret.withheld"]) == (1 if reason else 0)
    if reason:
        assert "withheld from n1, n2 (2): " in told[0][0]
    else:
        assert told[0] == []


def test_ca_bundle_is_sent_to_every_proxy(tmp_path: Path) -> None:
    put(tmp_path / "secrets" / "engines", client=False)
    around = FakeServer(tmp_path / "secrets")
    around.serve()
    around.nodes = {"n1": View()}
    assert around.withheld == {}


def test_missing_served_secret_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    around = FakeServer(folder)
    assert not list(around.entrusted.file_problems())
    around.serve()
    [trouble] = around.entrusted.file_problems()
    assert (trouble.defect, trouble.file) == (FileDefect.UNUSABLE, "engines")
    assert trouble.sentence.startswith("no folder ")
    (folder / "engines").mkdir()
    for _ in range(2):
        around.entrusted.folder.poll()
    [trouble] = around.entrusted.file_problems()
    assert (trouble.defect, trouble.file) == (FileDefect.UNUSABLE, str(folder / "engines"))


def test_pending_policies_keep_their_secrets(tmp_path: Path) -> None:
    put(tmp_path / "secrets" / "engines")
    around = FakeServer(tmp_path / "secrets")
    around.pending_policies = (policies(),)
    shutil.rmtree(tmp_path / "secrets" / "engines")
    around.entrusted.folder.poll()
    assert "engines" in around.entrusted.engine_credentials()
    around.pending_policies = ()
    around.entrusted.folder.poll()
    assert "engines" not in around.entrusted.engine_credentials()
