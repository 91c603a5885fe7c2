"""``switchgear status`` reads the admin port and answers by its exit code."""

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.xds_server.admin_api import rows
from xds_server.cli import main

REFUSED = {"name": "port-1", "version": "v2", "origins": ["routes.yaml:7:3"], "reason": "bad regex"}


class Server:
    """An admin port that answers what the test says."""

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {
            "/v1/proxies": {"proxies": [proxy("n1", RDS="SYNCED", CDS="STALE")]},
            "/v1/policies": rows.document(rows.policies_status()),
            "/v1/engines": {
                "engines": [
                    engine("e1"),
                    engine("e2", agent=None, source="probe", gpu=None),
                    engine("e3", health="DRAINING", verdict="draining", reason="draining: requested"),
                ]
            },
        }
        pages = self.pages

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = pages.get(self.path)
                self.send_response(200 if page is not None else 404)
                self.end_headers()
                self.wfile.write(page if isinstance(page, bytes) else json.dumps(page).encode())

            def log_message(self, *_: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def engine(name: str, **said: Any) -> dict[str, Any]:
    gpus = [{"rank": 0, "temperature_c": 61}, {"rank": 1, "temperature_c": None}]
    known = {"source": "agent", "agent": agent(), "gpu": {"action": "none", "statement": "", "gpus": gpus}}
    return rows.document(rows.engine_status(name)) | known | said


def agent(**said: Any) -> dict[str, Any]:
    return rows.document(rows.agent_status()) | said


def proxy(node: str, **states: str) -> dict[str, Any]:
    types = [
        rows.document(rows.type_status(kind)) | {"state": state, "refused": [REFUSED] if state == "NACK" else []}
        for kind, state in states.items()
    ]
    return rows.document(rows.proxy_status(node)) | {"types": types}


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_push_in_progress_is_exit_status_0(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--admin", server.url]) == 0
    out = capsys.readouterr().out
    assert "Policies: accepted 5m ago, 0123456789ab" in out
    assert "Engines of chat: 1 DRAINING, 2 HEALTHY" in out
    assert [line for line in out.splitlines() if line != line.rstrip()] == [], "no blanks fill a table up"
    assert "SYNCED 12s" in out
    assert "STALE 12s" in out


def test_status_shows_report_source_and_age(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    hot = {"action": "drain", "statement": "", "gpus": [{"rank": 0, "temperature_c": 95}]}
    lost = engine("e4", agent=agent(connected=False), source="probe", gpu=hot)
    server.pages["/v1/engines"]["engines"].append(lost)
    assert main(["status", "--admin", server.url]) == 0
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.startswith("chat/")]
    assert shown == [
        "chat/e3 DRAINING draining agent 0.4s 2, 61 °C draining: requested",
        "chat/e4 HEALTHY ready probe, agent lost 0.4s drain: 1, 95 °C tokens advance",
        "chat/e1 HEALTHY ready agent 0.4s 2, 61 °C tokens advance",
        "chat/e2 HEALTHY ready probe 0.4s - tokens advance",
    ], "what needs a look comes first"
    server.pages["/v1/engines"]["engines"] += [engine(f"m{n}") for n in range(30)]
    assert main(["status", "--admin", server.url]) == 0
    assert "... and 14 more" in capsys.readouterr().out


def test_narrow_terminal_cuts_the_reason_only(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "62")
    server.pages["/v1/engines"]["engines"] = [
        engine("e1", evidence="a long reason that does not end"),
        engine("e2"),
    ]
    assert main(["status", "--admin", server.url]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("chat/")]
    assert len(shown) == 2
    assert all(" HEALTHY  ready  " in row and len(row) <= 62 for row in shown)
    assert shown[0].rstrip().endswith("…")


def test_nack_is_exit_status_1_with_its_policy_line(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.pages["/v1/proxies"] = {"proxies": [proxy("n1", RDS="SYNCED"), proxy("n2", RDS="NACK")]}
    assert main(["status", "--admin", server.url]) == 1
    assert "critical SG204 proxy n2: RDS refused: port-1 (routes.yaml:7:3): bad regex (for 12s)" in (
        capsys.readouterr().out
    )


def test_rejected_and_held_policies_are_exit_status_1(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    problem = {
        "place": "a.yaml:1:2",
        "code": "SG023",
        "path": "spec.modle",
        "message": "unknown field",
        "hint": "",
    }
    whole = {"place": "b.yaml", "code": "SG006", "path": "", "message": "nothing here", "hint": ""}
    server.pages["/v1/policies"] |= {
        "state": "refused",
        "errors": [problem, whole],
        "stale": True,
    }
    assert main(["status", "--admin", server.url]) == 1
    out = capsys.readouterr().out
    assert "a.yaml:1:2: SG023 spec.modle: unknown field" in out
    assert "b.yaml: SG006: nothing here" in out
    assert "critical SG200 policies: 2 errors in the policies; the last good version stays in force" in out
    assert "critical SG203 policies: serving the version restored from the last run" in out
    server.pages["/v1/policies"] |= {"state": "held", "errors": [], "held": "would remove 9 of 10"}
    assert main(["status", "--admin", server.url]) == 1
    assert "held back: would remove 9 of 10" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("policies", "answer", "code"),
    [
        # Read before: as an operator expects of an API server during an upgrade.
        ({"lost_s": {"pods": 40.0}}, 0, "SG202"),
        # Not read since the start: it is unknown whether the latest policies are in force.
        ({"lost_s": {"pods": 40.0}, "state": "unreached", "stale": True}, 1, "SG203"),
        ({"lost_s": {"pods": 40.0}, "state": "unreached", "serving_digest": ""}, 1, "SG207"),
        ({"state": "unread", "serving_digest": ""}, 1, "SG207"),
    ],
)
def test_lost_source_is_exit_status_1_unless_the_policies_were_read(
    server: Server, capsys: pytest.CaptureFixture[str], policies: dict[str, Any], answer: int, code: str
) -> None:
    server.pages["/v1/policies"] |= policies
    assert main(["status", "--admin", server.url, "-o", "json"]) == answer
    said = json.loads(capsys.readouterr().out)
    assert code in [one["code"] for one in said["conditions"]]
    assert main(["status", "--admin", server.url, "--fail-on", "warning"]) == 1
    capsys.readouterr()


def test_json_keeps_remarks_for_scripts_of_earlier_versions(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pages["/v1/proxies"] = {"proxies": []}
    assert main(["status", "--admin", server.url, "--output", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (remark,) = [one for one in said["remarks"] if one["code"] == "SG206"]
    (condition,) = [one for one in said["conditions"] if one["code"] == "SG206"]
    assert (remark["state"], remark["subject"]) == ("warn", "proxies")
    assert (remark["sentence"], remark["fix"]) == (condition["sentence"], condition["fix"])


def test_json_is_the_servers_answer(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--admin", server.url, "--output", "json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["proxies"] == server.pages["/v1/proxies"]["proxies"]
    assert out["policies"] == server.pages["/v1/policies"]


def test_status_without_proxies(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.pages["/v1/proxies"] = {"proxies": []}
    assert main(["status", "--admin", server.url]) == 0
    assert "warning SG206 proxies: no proxy is connected" in capsys.readouterr().out


def test_unusable_server_is_exit_status_2(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    for admin, says in (
        ("http://127.0.0.1:1", "no server answers"),
        ("ftp://127.0.0.1", "is not an address"),
        ("http://127.0.0.1:port", "is not an address"),
    ):
        assert main(["status", "--admin", admin]) == 2
        assert says in capsys.readouterr().err
    server.pages["/v1/policies"] = b"<html>"
    assert main(["status", "--admin", server.url]) == 2
    assert "does not answer as Switchgear does" in capsys.readouterr().err
    del server.pages["/v1/proxies"]
    assert main(["status", "--admin", server.url]) == 2
    assert "answered 404" in capsys.readouterr().err


def test_port_without_http_is_exit_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    # As a gRPC port answers: a frame of HTTP/2.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1024)
                peer.sendall(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\r\n")

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(answer)
            assert main(["status", "--admin", f"http://127.0.0.1:{port}"]) == 2
            done.result(timeout=30)
    assert "is it the admin port?" in capsys.readouterr().err


def test_unreachable_source_shows_what_is_served(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.pages["/v1/policies"] |= {"source": "kubernetes", "lost_s": {"pods": 40.2, "nodes": 12.0}}
    assert main(["status", "--admin", server.url]) == 0
    said = (
        "warning SG202 policies: the Kubernetes API does not answer for nodes, pods; serving the last known state "
        "(for 40s)"
    )
    assert said in capsys.readouterr().out
    server.pages["/v1/policies"] |= {"state": "unreached", "serving_digest": ""}
    assert main(["status", "--admin", server.url]) == 1
    assert "nothing is served until it answers" in capsys.readouterr().out


def test_status_shows_served_and_canary_version(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    files = rows.document(rows.version_status(1))
    server.pages["/v1/history"] = {"versions": [files], "kept": True, "stands": 0}
    server.pages["/v1/apply"] = {"state": "none"}
    assert main(["status", "--admin", server.url]) == 0
    out = capsys.readouterr().out
    assert "version 1 (0123456789ab)\n" in out
    assert "canary" not in out
    applied = rows.document(rows.version_status(2, source="applied", by="ann"))
    server.pages["/v1/history"] = {"versions": [{**files, "serving": False}, applied], "kept": True, "stands": 2}
    server.pages["/v1/apply"] = {
        "state": "running",
        "by": "bob",
        "percent": 10.0,
        "proxies": ["n1"],
        "age_s": 20.0,
        "left_s": 40.0,
        "word": "unknown",
    }
    assert main(["status", "--admin", server.url]) == 0
    out = capsys.readouterr().out
    assert "version 2 (0123456789ab), applied by ann; stays until the policy files change\n" in out
    assert "canary by bob: 10 % (1 proxy), running for 20s, 40s left: unknown" in out


def rolled_back_canary(**said: Any) -> dict[str, Any]:
    return {
        "state": "rolled-back",
        "by": "bob",
        "digest": "5c1d0ffee5c1d0ffee",
        "reasons": ["30 % of 100 requests fail", "2 % of the others"],
        "ended_s": 720.0,
    } | said


def test_canary_rollback_is_reported_for_an_hour_with_its_reason(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pages["/v1/history"] = {"versions": [], "kept": True, "stands": 0}
    server.pages["/v1/apply"] = rolled_back_canary()
    assert main(["status", "--admin", server.url]) == 0, "all have what they had: nothing is out of force"
    said = (
        "SG219 canary: 5c1d0ffee5c1 by bob rolled back: 30 % of 100 requests fail; 2 % of the others (for 12m)\n"
    )
    shown = capsys.readouterr().out
    assert said in shown
    assert "get events" in shown.partition(said)[2].splitlines()[0], "the fix follows"
    main(["status", "--admin", server.url, "-o", "json"])
    assert "SG219" in [one["code"] for one in json.loads(capsys.readouterr().out)["conditions"]]
    server.pages["/v1/apply"] = rolled_back_canary(reasons=["p0 refuses:\nbad\x1b[31m"], by="")
    main(["status", "--admin", server.url])
    assert (
        "by unknown rolled back: p0 refuses: bad\N{REPLACEMENT CHARACTER}[31m (for 12m)\n"
        in capsys.readouterr().out
    )
    served = rolled_back_canary(state="served")
    older = {name: value for name, value in rolled_back_canary().items() if name != "ended_s"}
    for other in (rolled_back_canary(ended_s=3601.0), served, older, {"state": "none"}):
        server.pages["/v1/apply"] = other
        assert main(["status", "--admin", server.url]) == 0
        assert "SG219" not in capsys.readouterr().out


def trouble(what: str, defect: str, file: str, **said: Any) -> dict[str, Any]:
    base = {"what": what, "defect": defect, "file": file, "sentence": "why", "age_s": 40.0, "ends_in_s": None}
    return base | said


def rolled_back(**said: Any) -> dict[str, Any]:
    return {
        "type": "RDS",
        "name": "port-10000",
        "version": "v2",
        "origins": ["routes.yaml:7:3"],
        "refused_by": ["n1"],
        "refusals": 1,
        "age_s": 240.0,
        "reason": "bad regex",
        "on_content_before": 2,
        "on_nothing": 1,
        "on_trial": 0,
    } | said


@pytest.mark.parametrize(
    ("found", "answer", "line"),
    [
        (trouble("certificate", "unusable", "/t/tls.crt"), 1, "SG210 certificate: /t/tls.crt: why (for 40s)"),
        (trouble("certificate", "ends", "/t/tls.crt"), 0, "SG211 certificate: /t/tls.crt: why"),
        (trouble("certificate", "ended", "/t/tls.crt"), 1, "SG212 certificate: /t/tls.crt: why"),
        (trouble("rules", "unusable", "/t/a.yaml", sentence="/t/a.yaml:1: no"), 1, "SG213 rules: /t/a.yaml:1: no"),
        (trouble("token", "unusable", "/t/token"), 1, "SG214 token: /t/token: why"),
        (trouble("token", "open", "/t/token"), 0, "SG215 token: /t/token: why"),
        (trouble("secret", "unusable", "/t/mesh"), 1, "SG216 secret: /t/mesh: why"),
        (trouble("secret", "ends", "/t/mesh"), 0, "SG211 secret: /t/mesh: why"),
        (trouble("secret", "withheld", "mesh"), 1, "SG218 secret: mesh: why"),
        (trouble("something", "new", "/t/x"), 1, "SG216 something: /t/x: why"),
    ],
)
def test_file_problem_is_shown_with_its_fix(
    server: Server, capsys: pytest.CaptureFixture[str], found: dict[str, Any], answer: int, line: str
) -> None:
    server.pages["/v1/troubles"] = {"troubles": [found], "rolled_back": []}
    assert main(["status", "--admin", server.url]) == answer
    out = capsys.readouterr().out.splitlines()
    [at] = [number for number, text in enumerate(out) if text.partition(" ")[2].startswith(line)]
    assert out[at + 1].startswith("  ")
    assert out[at + 1].endswith(".")
    assert main(["status", "--admin", server.url, "-o", "json"]) == answer
    said = json.loads(capsys.readouterr().out)
    assert said["troubles"] == [found]
    assert line.split(maxsplit=1)[0] in [one["code"] for one in said["conditions"]]


def test_rolled_back_nack_is_exit_status_1_even_when_in_sync(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pages["/v1/troubles"] = {"troubles": [], "rolled_back": [rolled_back()]}
    assert main(["status", "--admin", server.url]) == 1
    assert (
        "critical SG217 RDS port-10000: refused by n1 and rolled back: 2 proxies have the previously accepted "
        "content; 1 proxy has no such resource (routes.yaml:7:3): bad regex (for 4m)\n"
    ) in capsys.readouterr().out
    many = rolled_back(refused_by=[f"n{one}" for one in range(10)], refusals=300, on_nothing=0, origins=[])
    unknown = rolled_back(refused_by=[], refusals=0, age_s=None, reason="", on_content_before=1, on_nothing=0)
    server.pages["/v1/troubles"]["rolled_back"] = [many, unknown]
    assert main(["status", "--admin", server.url]) == 1
    out = capsys.readouterr().out
    assert "refused by n0, n1, n2, n3, n4 and 295 more and rolled back" in out
    assert "(built-in defaults)" in out
    assert "refused by a proxy, in an earlier run of the server and rolled back: 1 proxy has" in out


def test_control_characters_of_a_peer_are_replaced(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = rolled_back(refused_by=["n\x1b[2J"], reason="two\nlines\x07")
    server.pages["/v1/troubles"] = {"troubles": [], "rolled_back": [hostile]}
    assert main(["status", "--admin", server.url]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "two lines" in out


@pytest.mark.parametrize(("fail_on", "code"), [("critical", 0), ("warning", 0), ("info", 1)])
def test_push_in_progress_is_info(server: Server, fail_on: str, code: int) -> None:
    server.pages["/v1/engines"]["engines"] = [engine("e1")]
    assert main(["status", "--admin", server.url, "--fail-on", fail_on]) == code


@pytest.mark.parametrize(("fail_on", "code"), [("critical", 0), ("warning", 1), ("info", 1)])
def test_draining_engine_is_a_warning(server: Server, fail_on: str, code: int) -> None:
    assert main(["status", "--admin", server.url, "--fail-on", fail_on]) == code


def test_status_of_one_proxy(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.pages["/v1/proxies"] = {"proxies": [proxy("n1", RDS="SYNCED"), proxy("n2", RDS="NACK")]}
    assert main(["status", "n1", "--admin", server.url]) == 0
    out = capsys.readouterr().out
    assert "n1" in out
    assert "n2" not in out
    assert "chat/e1" not in out
    assert main(["status", "n2", "--admin", server.url, "-o", "json"]) == 1
    assert [one["node"] for one in json.loads(capsys.readouterr().out)["proxies"]] == ["n2"]
    assert main(["status", "n3", "--admin", server.url]) == 1
    assert capsys.readouterr().err == "proxy 'n3' is not connected\n"


def test_held_policies_show_the_command_that_releases_them(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pages["/v1/policies"] |= {"state": "held", "held": "would remove 9 of 10"}
    main(["status", "--admin", server.url])
    assert "switchgear release" in capsys.readouterr().out
