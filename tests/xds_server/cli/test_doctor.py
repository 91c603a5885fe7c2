"""``switchgear doctor``: exit codes, forms, gates, ports, policies and rights, against doubles."""

import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.engine.tls.certificate_fixtures import certificate
from tests.xds_server.admin_api import rows
from xds_server.cli import main

ABOUT = {
    "python": "3.11.7",
    "libraries": {"switchgear": version("switchgear"), "grpcio": "1.85.1"},
    "platform": "Linux",
    "open_files": 10,
    "open_files_limit": 1024,
    "disk": None,
    "listen": "127.0.0.1:0",
    "gated_pools": [],
    "proxies": [],
}


class Double:
    """A server that answers these pages, with a chosen clock."""

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {}
        self.skew_s = 0.0
        double = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = double.page(self.path)
                self.send_response(404 if page is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(page).encode())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.do_GET()

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string((timestamp or time.time()) + double.skew_s)

            def log_message(self, *_: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def page(self, path: str) -> Any:
        page = self.pages.get(path.partition("?")[0])
        return page | {"now_unix_s": time.time() + self.skew_s} if path == "/v1/about" and page else page

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def doubles() -> Iterator[list[Double]]:
    made = [Double(), Double()]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def server(doubles: list[Double]) -> Double:
    one = doubles[0]
    one.pages = {
        "/v1/about": dict(ABOUT),
        "/v1/policies": rows.document(rows.policies_status(pools=())),
        "/v1/proxies": {"proxies": []},
        "/v1/engines": {"engines": []},
    }
    return one


@pytest.fixture
def engine(doubles: list[Double], server: Double) -> Double:
    """An engine in the pool chat."""
    row = rows.document(rows.engine_status("r1", address="127.0.0.1", port=doubles[1].port))
    server.pages["/v1/engines"] = {"engines": [row]}
    return doubles[1]


def told(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    code = main(["doctor", *arguments, "-o", "json"])
    return code, {one["subject"]: one for one in json.loads(capsys.readouterr().out)["checks"]}


def test_a_sound_server_fails_nothing(server: Double, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = told("--admin", server.url, "--xds", f"127.0.0.1:{server.port}", capsys=capsys)
    assert code == 0
    assert {subject for subject, one in said.items() if one["state"] == "ok"} >= {
        "version",
        "policies",
        "xDS port",
    }
    assert said["proxies"]["code"] == "SG206"
    assert main(["doctor", "--admin", server.url]) == 0
    assert "warn SG206 proxies: no proxy is connected" in capsys.readouterr().out


def test_doctor_reports_certificates_and_rollbacks(server: Double, capsys: pytest.CaptureFixture[str]) -> None:
    server.pages["/v1/troubles"] = {"troubles": [], "rolled_back": []}
    code, said = told("--admin", server.url, capsys=capsys)
    assert (code, said["certificates and access"]["state"]) == (0, "ok")
    expiring = {"what": "certificate", "defect": "ends", "file": "a.crt", "sentence": "soon", "age_s": 5.0}
    server.pages["/v1/troubles"]["troubles"] = [expiring]
    code, said = told("--admin", server.url, capsys=capsys)
    assert (code, said["certificate"]["state"], said["certificate"]["code"]) == (0, "warn", "SG211")
    server.pages["/v1/troubles"]["troubles"] = [expiring | {"what": "rules", "defect": "unusable"}]
    code, said = told("--admin", server.url, capsys=capsys)
    assert (code, said["rules"]["code"]) == (1, "SG213")
    assert said["rules"]["fix"]


def test_missing_server_fails_with_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = told("--admin", "http://127.0.0.1:1", capsys=capsys)
    assert (code, said["server"]["code"]) == (1, "SG220")
    assert main(["doctor", "--admin", "ftp://x"]) == 2


def test_other_server_at_the_port_is_recognized(server: Double, capsys: pytest.CaptureFixture[str]) -> None:
    server.pages = {}
    code, said = told("--admin", server.url, capsys=capsys)
    assert (code, said["server"]["code"], said["admin port"]["code"]) == (1, "SG220", "SG235")


def test_doctor_names_each_fault(server: Double, capsys: pytest.CaptureFixture[str]) -> None:
    server.skew_s = 120.0
    server.pages["/v1/about"] |= {"python": "3.9.1", "libraries": {"switchgear": "0.0.1"}, "open_files": 1000}
    server.pages["/v1/policies"] |= {"state": "held", "held": "would remove 9 of 10"}
    code, said = told("--admin", server.url, "--xds", "127.0.0.1:1", capsys=capsys)
    assert code == 1
    assert {one["code"] for one in said.values() if one["code"]} == {
        "SG201", "SG206", "SG221", "SG230", "SG231", "SG232", "SG233",
    }  # fmt: skip
    assert "120 s ahead" in said["clock of the server"]["sentence"]
    assert all(one["fix"] for one in said.values() if one["code"])


def test_a_gate_is_asked_for_where_a_policy_says_that_there_is_one(
    server: Double, engine: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "first-token gate" not in told("--admin", server.url, capsys=capsys)[1]
    server.pages["/v1/about"] |= {"gated_pools": ["chat"]}
    code, said = told("--admin", server.url, capsys=capsys)
    assert (code, said["first-token gate"]["code"]) == (1, "SG250")
    engine.pages["/switchgear/in_flight"] = {"detail": "a page for everything"}
    assert told("--admin", server.url, capsys=capsys)[1]["first-token gate"]["code"] == "SG250"
    engine.pages["/switchgear/in_flight"] = {"in_flight": 1, "waiting_for_first_token": 0}
    engine.skew_s = -90.0
    code, said = told("--admin", server.url, capsys=capsys)
    assert (code, said["first-token gate"]["state"]) == (0, "ok")
    assert said["clock of engine chat/r1"]["code"] == "SG232"
    server.pages["/v1/engines"]["engines"][0] |= {"port": 1}
    assert told("--admin", server.url, capsys=capsys)[1]["first-token gate"]["code"] == "SG251"


def test_a_gate_behind_tls_is_asked_by_tls(
    tmp_path: Path, server: Double, engine: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate(tmp_path, "engine", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "engine.crt", tmp_path / "engine.key")
    engine.server.socket = context.wrap_socket(
        engine.server.socket, server_side=True, do_handshake_on_connect=False
    )
    server.pages["/v1/about"] |= {"gated_pools": ["chat"]}
    code, said = told("--admin", server.url, capsys=capsys)
    assert (code, said["first-token gate"]["code"]) == (1, "SG250")
    engine.pages["/switchgear/in_flight"] = {"in_flight": 1, "waiting_for_first_token": 0}
    engine.skew_s = -90.0
    code, said = told("--admin", server.url, capsys=capsys)
    assert (code, said["first-token gate"]["state"]) == (0, "ok")
    assert said["clock of engine chat/r1"]["code"] == "SG232", "its clock is read, too"
    assert said["certificates of engines"]["state"] == "ok"
    assert "pool chat" not in said, "an older server does not report TLS pools"
    server.pages["/v1/about"] |= {"tls_pools": ["chat"]}
    assert "pool chat" not in told("--admin", server.url, capsys=capsys)[1]
    server.pages["/v1/about"] |= {"tls_pools": []}
    code, said = told("--admin", server.url, capsys=capsys)
    assert (code, said["pool chat"]["code"]) == (1, "SG226")
    assert said["pool chat"]["sentence"] == "spec.tls is not set, but TLS is spoken by r1"
    server.pages["/v1/about"] |= {"tls_pools": ["chat"]}
    context.load_verify_locations(tmp_path / "engine.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    code, said = told("--admin", server.url, capsys=capsys)
    assert (code, said["first-token gate"]["code"]) == (0, "SG251"), "it requires a client certificate"


def test_doctor_reports_a_rolled_back_canary(server: Double, capsys: pytest.CaptureFixture[str]) -> None:
    server.pages["/v1/apply"] = {
        "state": "rolled-back",
        "by": "ann",
        "digest": "5c1d0ffee5c1d0ffee",
        "reasons": ["p0 refuses RDS port-1: bad regex"],
        "ended_s": 60.0,
    }
    code, said = told("--admin", server.url, capsys=capsys)
    assert (code, said["canary"]["code"], said["canary"]["state"]) == (0, "SG219", "warn")
    assert said["canary"]["sentence"].endswith("p0 refuses RDS port-1: bad regex")


def test_policy_files_are_judged_too(tmp_path: Path, server: Double, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("kind: EnginePool\nspec: {modle: x}\n")
    code, said = told("--admin", server.url, "-f", str(tmp_path), capsys=capsys)
    assert (code, said["policy files"]["code"]) == (1, "SG260")


def test_external_services_of_policies_are_called_from_here(
    tmp_path: Path, server: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    jwks = "{name: idp, issuer: i, audiences: [a], remoteJwks: {uri: 'http://no-such-host.invalid/keys'}}"
    (tmp_path / "a.yaml").write_text(
        f"""apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: p}}
spec: {{model: m, endpoints: [{{address: 127.0.0.1, port: 8000}}]}}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: r}}
spec:
  listener:
    port: 8080
    accessLogCollector: {{address: 127.0.0.1, port: {server.port}}}
    extAuth: {{address: 127.0.0.1, port: 1}}
    jwt: {{providers: [{jwks}]}}
  pools: [{{pool: p}}]
"""
    )
    code, said = told("--admin", server.url, "-f", str(tmp_path), capsys=capsys)
    assert code == 0, "proxies may reach what this machine does not"
    sound = said[f"service 127.0.0.1:{server.port}"]
    assert (sound["state"], sound["sentence"]) == (
        "ok",
        "accepts connections from this machine (accessLogCollector of r)",
    )
    for subject, field in (
        ("service 127.0.0.1:1", "extAuth"),
        ("service no-such-host.invalid:80", "jwt.providers[0].remoteJwks"),
    ):
        assert (said[subject]["state"], said[subject]["code"]) == ("warn", "SG262")
        assert f"{field} of r" in said[subject]["sentence"]


@pytest.fixture
def kubeconfig(tmp_path: Path, doubles: list[Double]) -> Path:
    cluster = doubles[1]
    cluster.pages = {"/version": {"gitVersion": "v1.31"}, "/api/v1/pods": {"items": [], "metadata": {}}}
    path = tmp_path / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "x",
                "clusters": [{"name": "x", "cluster": {"server": cluster.url}}],
                "users": [{"name": "x", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            }
        )
    )
    return path


def test_rights_and_grace_periods_of_a_cluster(
    server: Double, doubles: list[Double], kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--admin", server.url, "--kubeconfig", str(kubeconfig))
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    code, said = told(*asked, capsys=capsys)
    assert (code, said["rights to read policies"]["code"]) == (0, "SG241"), "an API without reviews"
    doubles[1].pages[reviews] = {"status": {"allowed": True}}
    short = {
        "metadata": {"name": "chat-0", "namespace": "inference"},
        "spec": {"terminationGracePeriodSeconds": 30, "containers": [{"args": ["--drain-deadline=900s"]}]},
    }
    doubles[1].pages["/api/v1/pods"] = {"items": [short], "metadata": {}}
    code, said = told(*asked, capsys=capsys)
    assert (code, said["pod inference/chat-0"]["code"]) == (1, "SG243")
    assert said["rights to read policies"]["state"] == "ok"
    doubles[1].pages[reviews] = {"status": {"allowed": False}}
    code, said = told(*asked, capsys=capsys)
    assert (code, said["rights to read engines"]["code"]) == (1, "SG240")
    kubeconfig.write_text("{")
    assert told(*asked, capsys=capsys)[1]["Kubernetes"]["code"] == "SG242"


def test_a_server_that_goes_in_the_middle_leaves_what_was_found(
    server: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    del server.pages["/v1/engines"]
    code, said = told("--admin", server.url, capsys=capsys)
    assert (code, said["server"]["code"], said["version"]["state"]) == (1, "SG220", "ok")
    assert "clock of the server" in said


@pytest.mark.parametrize("url", ["http://[x", "http://127.0.0.1:99999", "http://127.0.0.1:x", ""])
def test_malformed_envoy_address_is_a_usage_error(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--admin", "http://127.0.0.1:1", "--envoy-admin", url]) == 2
    assert "is not an address" in capsys.readouterr().err
