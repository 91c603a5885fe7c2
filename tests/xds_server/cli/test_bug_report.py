"""``switchgear bug-report``: the bundle holds no planted secret, and names missing parts."""

import errno
import gzip
import http.server
import json
import stat
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.xds_server.admin_api import rows
from xds_server.cli import bug_report, main

SECRET = "hunter2hunter2hunter2"
POLICIES = f"""
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: chat, labels: {{owner: {SECRET}}}}}  # {SECRET}
spec:
  model: m
  endpoints: [{{name: r1, address: 10.0.0.1, port: 8000, labels: {{team: {SECRET}}}}}]
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: chat}}
spec:
  listener: {{port: 10000}}
  match: {{headers: [{{name: x-key, exact: {SECRET}}}]}}
  pools: [{{pool: chat}}]
"""


@pytest.fixture
def admin() -> Iterator[str]:
    """A server with a secret in every answer."""
    leak = {
        "labels": {"a": SECRET},
        "evidence": f"GET http://ann:{SECRET}@engine:8000/health?token={SECRET} failed",
        "reason": f"Authorization: Bearer {SECRET}",
        "password": SECRET,
    }
    pages: dict[str, Any] = {
        f"/v1/{name}": {name: [leak]} for name in ("engines", "pools", "zones", "orders", "resources")
    }
    pages["/v1/events"] = {"events": [rows.document(rows.event_status()) | leak]}
    proxy = rows.document(rows.proxy_status("n1", zone="z")) | leak
    about = {
        "libraries": {"switchgear": "0.1.0"},
        "python": "3.11.1",
        "now_unix_s": 0.0,
        "disk": None,
        "platform": "x",
    }
    about |= {
        "disk": None,
        "listen": "",
        "gated_pools": [],
        "proxies": [],
        "open_files": 1,
        "open_files_limit": None,
    }
    engine = rows.document(rows.engine_status("e", pool="p", health="UNHEALTHY", address=""))
    problem = {"code": "SG023", "place": "a:1:1", "path": "", "message": f"password: {SECRET}", "hint": ""}
    refused = {
        "code": "SG200", "severity": "critical", "subject": "policies", "sentence": f"password: {SECRET}",
        "fix": "f",
    }  # fmt: skip
    pages |= {
        "/v1/about": about | leak,
        "/v1/proxies": {"proxies": [proxy]},
        "/v1/shadow": leak,
        "/v1/troubles": leak | {"troubles": [], "rolled_back": []},
        "/v1/snapshot": leak,
        "/v1/conditions": {"conditions": [refused]},
        "/v1/policies": rows.document(rows.policies_status(state="refused")) | {"errors": [problem]},
        "/v1/engines": {"engines": [engine | leak]},
    }  # fmt: skip

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            text = f'x{{url="http://u:{SECRET}@h/"}} 1\n' if self.path == "/metrics" else json.dumps(page)
            self.send_response(200 if page is not None or self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def parts(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        found = {}
        for entry in tar.getmembers():
            file = tar.extractfile(entry)
            assert file is not None
            found[entry.name.partition("/")[2]] = file.read()
    return found


def test_no_secret_that_was_planted_is_in_the_bundle(
    tmp_path: Path, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHGEAR_ADMIN_TOKEN", SECRET)
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "chat.yaml").write_text(POLICIES)
    target = tmp_path / "report.tar.gz"
    code = main(
        [
            "bug-report",
            "--admin",
            admin,
            "--out",
            str(target),
            "-f",
            str(policies),
            "--proxy",
            "n1",
            "--proxy",
            "../n",
        ]
    )
    found = parts(target)
    assert code == 0, found["manifest.json"]
    assert {"manifest.json", "about.json", "events.json", "metrics.txt", "policies.yaml", "doctor.json"} <= set(
        found
    )
    assert {"state/engines.json", "served/n1.json", "served/_n.json", "snapshots.json", "here.json"} <= set(found)
    leaks = [name for name, content in found.items() if SECRET.encode() in content]
    assert leaks == []
    assert SECRET.encode() not in gzip.decompress(target.read_bytes())
    assert b"x-key" in found["policies.yaml"], "the shape stays"
    assert b"SWITCHGEAR_ADMIN_TOKEN" in found["here.json"]
    assert b"SG200" in found["doctor.json"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_bundle_states_that_the_server_is_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text(f"kind: EnginePool\nspec: {{password: {SECRET}\n")
    target = tmp_path / "report.tar.gz"
    asked = [
        "bug-report",
        "--admin",
        "http://127.0.0.1:1",
        "--out",
        str(target),
        "-f",
        str(tmp_path / "bad.yaml"),
    ]
    assert main([*asked, "--envoy-admin", "http://127.0.0.1:1"]) == 1
    found = parts(target)
    missing = json.loads(found["manifest.json"])["missing"]
    assert sorted(missing) == ["envoys/0.json", "policies.yaml", "server"]
    assert "missing: server: no server answers" in capsys.readouterr().err
    assert b"SG220" in found["doctor.json"]
    assert all(SECRET.encode() not in content for content in found.values())


def test_a_file_that_exists_is_left_alone(tmp_path: Path, admin: str) -> None:
    target = tmp_path / "report.tar.gz"
    target.write_text("mine")
    assert main(["bug-report", "--admin", admin, "--out", str(target)]) == 2
    assert target.read_text() == "mine"
    assert main(["bug-report", "--admin", admin, "--out", str(tmp_path / "no" / "folder.tar.gz")]) == 2


def test_half_a_bundle_is_none(tmp_path: Path, admin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    target = tmp_path / "report.tar.gz"
    assert main(["bug-report", "--admin", admin, "--out", str(target)]) == 2
    assert not target.exists()


def test_a_part_that_is_too_large_is_cut_and_a_full_bundle_says_what_is_not_in_it(
    tmp_path: Path, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bug_report, "MOST_PART_BYTES", 100)
    monkeypatch.setattr(bug_report, "MOST_BYTES", 450)
    target = tmp_path / "report.tar.gz"
    assert main(["bug-report", "--admin", admin, "--out", str(target)]) == 1
    found = parts(target)
    manifest = json.loads(found.pop("manifest.json"))
    assert sum(map(len, found.values())) <= 450
    assert "about.json" in manifest["cut"]
    assert "bundle full" in manifest["missing"].values()
