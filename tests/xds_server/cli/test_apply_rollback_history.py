"""``switchgear apply | rollback | history`` against a server's admin port."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from structlog.testing import capture_logs

from tests.xds_server.admin_api import rows
from tests.xds_server.rollout.test_policy_versions import Server, accepted, serving, text
from xds_server.admin.history_routes import add_history
from xds_server.cli import admin_client, apply, main
from xds_server.cli.admin_client import AdminApiError, NoAnswerError


class Running:
    """A server in a thread of its own, because commands wait for answers."""

    def __init__(self) -> None:
        self.url = ""
        self._begun = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._thread.start()
        assert self._begun.wait(30)

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        async with serving() as server:
            runner = web.AppRunner(_app(server))
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            server.changing.offer(accepted("p", "q"))
            await server.serves("p", "q")
            self._begun.set()
            await self._stop.wait()
            await runner.cleanup()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        self._loop.close()


def _app(server: Server) -> web.Application:
    async def proxies(_: web.Request) -> web.Response:
        return web.json_response({"proxies": [rows.document(rows.proxy_status())]})

    async def pools(_: web.Request) -> web.Response:
        found = [rows.pool_status("p", arrivals_per_s=3.0), rows.pool_status("q", arrivals_per_s=1.0)]
        return web.json_response({"pools": [rows.document(one) for one in found]})

    app = web.Application()
    add_history(app, server.changing)
    app.router.add_get("/v1/proxies", proxies)
    app.router.add_get("/v1/pools", pools)
    return app


@pytest.fixture
def url() -> Iterator[str]:
    with capture_logs():  # of the server, which has no stdout of its own here
        running = Running()
        try:
            yield running.url
        finally:
            running.end()


@pytest.fixture
def new(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(text("p", engines=3))
    (tmp_path / "q.yaml").write_text(text("q"))
    return tmp_path


def test_diff_apply_history_rollback(url: str, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "-f", str(new), "--admin", url]) == 1
    out = capsys.readouterr().out
    assert "+ EnginePool/p spec.endpoints[e2]" in out
    assert "resources of gateway in z1 (1 proxy)" in out
    assert "affected: pools p; routes none; 1 of 1 proxies; 75 % of current traffic" in out
    assert main(["apply", "-f", str(new), "--dry-run", "--admin", url]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert main(["apply", "-f", str(new), "--admin", url, "--by", "ann", "--reason", "a third"]) == 0
    assert "version 2 (" in capsys.readouterr().out
    assert main(["diff", "-f", str(new), "--admin", url]) == 0
    capsys.readouterr()
    assert main(["history", "--admin", url]) == 0
    told = capsys.readouterr()
    lines = [line.split() for line in told.out.splitlines()]
    assert [(line[0], line[1]) for line in lines[1:2]] == [("2", "*")]
    assert ["ann" in line for line in lines[1:3]] == [True, False]
    assert "in memory only" in told.err
    assert main(["history", "--diff", "1", "2", "--admin", url]) == 1
    assert "slots" in capsys.readouterr().out
    assert main(["rollback", "--admin", url, "--by", "bob"]) == 0
    capsys.readouterr()
    assert main(["history", "3", "-o", "json", "--admin", url]) == 0
    assert set(json.loads(capsys.readouterr().out)["texts"]) == {"p.yaml", "q.yaml"}
    assert main(["history", "--diff", "1", "3", "--admin", url]) == 0


def test_apply_sends_the_diffed_version_as_precondition(
    url: str, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "-f", str(new), "--admin", url]) == 1
    assert re.search(
        r"^Compared with version 1 \(.+\)\. .*: switchgear apply --expect 1$",
        capsys.readouterr().out,
        re.MULTILINE,
    )
    assert main(["diff", "-f", str(new), "--admin", url, "-o", "json"]) == 1
    against = json.loads(capsys.readouterr().out)["against"]
    assert against["number"] == 1
    assert main(["apply", "-f", str(new), "--expect", "1", "--by", "ann", "--admin", url]) == 0
    now = r"^Now serving version 2 \(.*\); previously version 1 \(from files, .* ago\)\. It stays"
    assert re.search(now, capsys.readouterr().out)
    for command in (["apply", "-f", str(new)], ["apply", "-f", str(new), "--dry-run"], ["rollback"]):
        assert main([*command, "--expect", "1", "--admin", url]) == 1
        assert (
            "refused: version 1 is not served any more; since then: version 2 (applied by ann,"
            in capsys.readouterr().err
        )
    assert main(["rollback", "--expect", "2", "--by", "bob", "--admin", url]) == 0
    assert "previously version 2 (applied by ann" in capsys.readouterr().out
    assert main(["apply", "-f", str(new), "--expect", "newest", "--admin", url]) == 2
    assert main(["apply", "--end-canary", "--expect", "2", "--admin", url]) == 2


def test_rejected_change_is_exit_status_1(url: str, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "9", "--admin", url]) == 1
    assert main(["rollback", "9", "--admin", url]) == 1
    assert "no version 9" in capsys.readouterr().err
    (new / "q.yaml").write_text("kind: [")
    assert main(["apply", "-f", str(new), "--admin", url]) == 1
    assert "q.yaml:1" in capsys.readouterr().err
    (new / "q.yaml").unlink()
    (new / "p.yaml").write_text(text("p", engines=1))
    assert main(["apply", "-f", str(new), "--admin", url]) == 1
    assert "held back: would remove" in capsys.readouterr().err


@pytest.mark.parametrize("said", ["x", "0", "-1", "1.5", "9" * 5000, "\N{SUPERSCRIPT TWO}"])
def test_invalid_version_is_refused_with_a_pointer_to_history(
    said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["rollback", "--", said], ["history", "--", said], ["history", "--diff", "1", said]):
        assert main([*command]) == 2
        assert "is not a version number; `switchgear history` lists them" in capsys.readouterr().err


@pytest.mark.parametrize("said", [["--for", "10m"], ["--yes-if-unknown"], ["--slo", "99%"]])
def test_canary_options_never_apply_to_all_proxies(
    said: list[str], new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", "-f", str(new), *said, "--admin", "http://127.0.0.1:1"]) == 2
    assert f"{said[0]} requires --canary" in capsys.readouterr().err


def test_ending_a_canary_applies_nothing(new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "-f", str(new), "--end-canary", "--admin", "http://127.0.0.1:1"]) == 2
    assert "remove -f" in capsys.readouterr().err


def test_short_commands_do_not_import_envoy() -> None:
    text = (
        "import sys; from xds_server.cli import main\n"
        "for words in (['apply', '--end-canary'], ['rollback'], ['history']):\n"
        "    main([*words, '--admin', 'http://127.0.0.1:1'])\n"
        "sys.exit('envoy_data_plane' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", text], check=True, capture_output=True)


def test_unreachable_server_is_exit_status_2(new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["apply", "-f", str(new)], ["rollback"], ["history"]):
        assert main([*command, "--admin", "http://127.0.0.1:1"]) == 2
        assert "no server answers" in capsys.readouterr().err


def test_an_objective_is_a_share_and_belongs_to_a_canary(
    url: str, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", "-f", str(new), "--slo", "99%", "--admin", url]) == 2
    assert "--canary" in capsys.readouterr().err
    for wrong in ("0", "101%", "good", "nan", "0.995", "1"):
        assert main(["apply", "-f", str(new), "--canary", "10%", "--slo", wrong, "--admin", url]) == 2
        assert "--slo" in capsys.readouterr().err
    # This server has no proxies, so it refuses the canary, not the objective.
    assert main(["apply", "-f", str(new), "--canary", "10%", "--slo", "99.5", "--admin", url]) == 1
    assert "no proxies" in capsys.readouterr().err


RUNNING = {
    "state": "running", "digest": "d1", "connected": 1, "proxies": ["n1"], "age_s": 1.0, "requests": 3,
    "word": "unknown", "reasons": ["the canary had 3 requests"], "version": 0,
}  # fmt: skip
KEPT = {
    "/v1/history": {"versions": [rows.document(rows.version_status(3, digest="d0"))], "kept": True},
    "/v1/history/serving": {"number": 3, "digest": "d0", "texts": {}},
}
GONE = NoAnswerError("no server answers")
Answers = Callable[..., None]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Has the server of a canary answer so, one after the other; exceptions are raised."""

    def given(*said: Any) -> None:
        left = [{"state": "canary", "digest": "d1"}, *said]

        def request_json(_admin: str, path: str, **_: object) -> Any:
            if path in KEPT:
                return KEPT[path]
            one = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(one, BaseException):
                raise one
            return one

        monkeypatch.setattr(admin_client, "request_json", request_json)
        monkeypatch.setattr(apply, "POLL_EACH_S", 0.0)

    return given


@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        # One missing answer is not the end: the canary continues, and so does the command.
        (
            (RUNNING, GONE, AdminApiError(429, "too often"), RUNNING | {"state": "served", "version": 4}),
            0,
            "version 4",
        ),
        ((RUNNING, GONE, {"state": "none", "reasons": []}), 1, "the server restarted"),
        ((RUNNING, RUNNING | {"digest": "d2"}), 1, "another followed"),
        (
            (RUNNING, KeyboardInterrupt(), RUNNING | {"state": "rolled-back", "reasons": ["ended by ann"]}),
            1,
            "ended by ann",
        ),
        ((RUNNING, KeyboardInterrupt(), KeyboardInterrupt()), 130, "--end-canary"),
        ((RUNNING, KeyboardInterrupt(), GONE), 2, "the canary may still run"),
    ],
)
def test_canary_watch_reports_promotion_or_rollback(
    answers: Answers, said: tuple[Any, ...], code: int, told: str, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(*said)
    assert main(["apply", "-f", str(new), "--canary", "10%"]) == code
    taken = capsys.readouterr()
    assert told in taken.out + taken.err


def test_a_server_that_stays_away_is_waited_for_so_long(
    answers: Answers, new: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(apply, "LOST_S", 0.05)
    answers(RUNNING, GONE)
    assert main(["apply", "-f", str(new), "--canary", "10%"]) == 2
    said = capsys.readouterr().err
    assert said.count("retrying") == 1
    assert "the server decides on its own" in said


def test_ctrl_c_before_the_answer_says_where_to_look(
    new: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(admin_client, "request_json", pressed)
    assert main(["apply", "-f", str(new)]) == 130
    assert "`switchgear status` shows whether" in capsys.readouterr().err


def test_forms_of_history_and_diff(url: str, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for form in ("table", "wide"):
        assert main(["history", "--admin", url, "-o", form]) == 0
        shown[form] = capsys.readouterr().out
    heads = {form: out.split()[1] for form, out in shown.items()}
    assert heads == {"table": "AGE", "wide": "AT"}
    assert ("digest of p q" in shown["wide"], "digest of p q" in shown["table"]) == (True, False)
    assert re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", shown["wide"])
    for form in ("text", "yaml"):
        assert main(["diff", "-f", str(new), "--admin", url, "-o", form]) == 1


def document(capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """The one document on stdout, and the messages on stderr."""
    taken = capsys.readouterr()
    return json.loads(taken.out), taken.err


NAMES = ["outcome", "reason", "digest", "serving", "replaced", "canary", "errors", "warnings", "diff"]


def test_json_reports_the_outcome_of_an_apply(url: str, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    admin = ["--admin", url, "-o", "json"]
    assert main(["diff", "-f", str(new), *admin]) == 1
    against = document(capsys)[0]["against"]
    assert main(["apply", "-f", str(new), "--dry-run", *admin]) == 0
    judged, _ = document(capsys)
    assert (judged["outcome"], judged["serving"], judged["replaced"]) == ("judged", against, None)
    assert judged["diff"]["against"] == against
    assert not judged["diff"]["same"]
    assert main(["apply", "-f", str(new), "--expect", "1", "--by", "ann", *admin]) == 0
    done, told = document(capsys)
    assert list(done) == NAMES
    assert (done["outcome"], done["reason"], done["canary"], done["errors"]) == ("served", "", None, [])
    assert done["serving"] == {"number": 2, "digest": judged["digest"]}
    assert done["replaced"] == {**against, "by": "files"}
    assert "version 2 (" in told
    assert main(["history", *admin]) == 0
    assert [one["digest"] for one in document(capsys)[0]["versions"]] == [against["digest"], done["digest"]]
    for command in (["apply", "-f", str(new)], ["rollback"]):
        assert main([*command, "--expect", "1", *admin]) == 1
        late, told = document(capsys)
        assert (late["outcome"], late["serving"], late["replaced"]) == ("superseded", done["serving"], None)
        assert "since then: version 2 (applied by ann," in late["reason"]
        assert told == f"refused: {late['reason']}\n"
    assert main(["rollback", "--expect", "2", *admin[:-1], "yaml"]) == 0
    back = yaml.safe_load(capsys.readouterr().out)
    assert (back["outcome"], back["replaced"]["by"]) == ("served", "ann")
    assert main(["history", "3", *admin]) == 0
    assert back["serving"] == {"number": 3, "digest": document(capsys)[0]["digest"]}
    assert main(["rollback", "9", *admin]) == 1
    assert document(capsys)[0]["outcome"] == "refused"


def test_json_reports_problem_locations(
    url: str, new: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = ["--admin", url, "-o", "json"]
    good = (new / "q.yaml").read_text()
    (new / "q.yaml").write_text(good.replace("model:", "modle:"))
    assert main(["validate", "-f", str(new), "-o", "json"]) == 1
    errors = document(capsys)[0]["errors"]
    assert main(["apply", "-f", str(new), *admin]) == 1
    refused, told = document(capsys)
    assert (refused["outcome"], refused["errors"], refused["serving"]["number"]) == ("refused", errors, 1)
    assert [(one["code"], one["file"]) for one in errors][:1] == [(errors[0]["code"], str(new / "q.yaml"))]
    assert errors[0]["code"] in told
    # The server has the last word, and names its problems as the files are named here.
    (new / "q.yaml").write_text(good)
    whole = apply._texts
    monkeypatch.setattr(
        apply,
        "_texts",
        lambda paths: {name: text.replace("model:", "modle:") for name, text in whole(paths).items()},
    )
    assert main(["apply", "-f", str(new), *admin]) == 1
    refused = document(capsys)[0]
    assert refused["outcome"] == "refused"
    assert [one for one in refused["errors"] if one["file"].endswith("q.yaml")] == errors


def test_json_reports_warnings(url: str, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "-f", str(new), "-o", "json"]) == 0
    warnings = document(capsys)[0]["warnings"]
    assert all(one["code"].startswith("SG1") for one in warnings)
    assert warnings
    assert main(["apply", "-f", str(new), "--admin", url, "-o", "json"]) == 0
    assert document(capsys)[0]["warnings"] == warnings


@pytest.mark.parametrize(
    ("last", "code", "outcome", "reason"),
    [
        ({"state": "served", "version": 4, "reasons": ["0 % fail"]}, 0, "served", "0 % fail"),
        (
            {"state": "rolled-back", "reasons": ["n1 refuses RDS r:\nno"]},
            1,
            "rolled-back",
            "n1 refuses RDS r:\nno",
        ),
        ({"state": "running", "digest": "d2"}, 1, "superseded", "the canary has ended and another followed"),
    ],
)
def test_json_reports_the_outcome_of_a_canary(
    answers: Answers,
    last: dict[str, Any],
    code: int,
    outcome: str,
    reason: str,
    new: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers(RUNNING, RUNNING | last)
    assert main(["apply", "-f", str(new), "--canary", "10%", "-o", "json"]) == code
    done, told = document(capsys)
    assert (done["outcome"], done["digest"], done["reason"][: len(reason)]) == (outcome, "d1", reason)
    if outcome == "superseded":
        assert done["canary"] is None
    else:
        assert (done["canary"]["proxies"], done["canary"]["word"]) == (["n1"], "unknown")
    now = {"number": 4, "digest": "d1"} if outcome == "served" else {"number": 3, "digest": "d0"}
    before = {"number": 3, "digest": "d0", "by": "files"} if outcome == "served" else None
    assert (done["serving"], done["replaced"]) == (now, before)
    assert "1 of 1 canary proxies" in told


def test_canary_watch_prints_only_changes(answers: Answers, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def seen(age_s: float, requests: int, **rest: Any) -> dict[str, Any]:
        reasons = [f"the canary saw {requests} requests, and 50 are needed to tell"]
        return RUNNING | {"age_s": age_s, "requests": requests, "reasons": reasons, **rest}

    answers(
        seen(0.0, 0),
        seen(1.0, 3),
        seen(2.0, 7),
        seen(3.0, 9, connected=0),
        seen(4.0, 60, word="good", reasons=["0 % fail, 1e+02 % elsewhere"]),
        seen(5.0, 70, word="good", reasons=["2.5 % fail, 99 % elsewhere"]),
        seen(65.0, 90, word="good", reasons=["2 % fail, 99 % elsewhere"]),
        RUNNING | {"state": "served", "version": 4},
    )
    assert main(["apply", "-f", str(new), "--canary", "10%"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == ["0 s", "3 s", "4 s", "65 s"]
