"""Files that earlier versions wrote mean today what they meant then."""

import json
import lzma
import re
import shutil
from pathlib import Path

import pytest

from chaos.checks.experiment_verdict import verdict
from chaos.cli import main as chaos
from chaos.history.history_reader import read_history as history
from engine.report import Verdict
from policies.load import load_contents
from xds_server.cli import main
from xds_server.ledger.decision_recording import RecordingReader, read_rounds
from xds_server.ledger.jsonl_writer import tail
from xds_server.ledger.ledger import Ledger
from xds_server.ledger.operator_orders import Orders
from xds_server.model.order import OrderAction
from xds_server.rollout.history.policy_version import VersionSource
from xds_server.rollout.history.version_archive import VersionArchive
from xds_server.rollout.last_good import LastGoodStore

DAY_S = 86_400.0


def test_the_last_good_policies(then: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    shutil.copytree(then / "state", state)
    kept = LastGoodStore(state).read()
    assert kept is not None
    assert sorted(kept.texts) == ["policies/all.yaml", "policies/more.yaml"]
    assert (dict(kept.proxies_by_role), dict(kept.proxies_by_zone)) == ({"gateway": 1}, {"z1": 1})
    policies = load_contents({Path(name): text.encode() for name, text in kept.texts.items()})
    pool = policies.pools["chat"].spec
    assert [one.name for one in pool.endpoints] == ["e0", "e1", "e2", "e3"]
    assert (pool.service_time, pool.slots_per_engine) == (0.25, 8)


def test_stored_nacked_content_has_its_accepted_replacement(then: Path, tmp_path: Path) -> None:
    shutil.copytree(then / "state", tmp_path / "state")
    kept = LastGoodStore(tmp_path / "state").read()
    assert kept is not None
    parked = {one.name: one for one in kept.parked}
    assert sorted(parked) == ["chat", "hop/chat"]
    for name, one in parked.items():
        assert one.type_url.endswith(".cluster.v3.Cluster")
        assert one.instead is not None
        assert one.instead.name == name
        assert name.encode() in one.instead.value
        assert one.instead.version != one.content, "the version served instead is not the refused one"


def test_stored_orders_stay_in_force_until_they_expire(then: Path, tmp_path: Path) -> None:
    (said,) = json.loads((then / "state" / "orders.json").read_text())
    shutil.copytree(then / "state", tmp_path / "state")

    def restored(after_s: float) -> list[tuple[str, OrderAction, str, str, bool]]:
        orders = Orders(tmp_path / "state", clock=lambda: 50.0, wall=lambda: said["given_at_unix_s"] + after_s)
        orders.restore()
        return [(str(key), one.action, one.reason, one.by, one.force) for key, one in orders.active(50.0).items()]

    assert restored(DAY_S / 2) == [("chat/e1", OrderAction.DRAIN, "new driver", "ops", True)]
    assert restored(DAY_S + 1) == []


def test_the_ledger(then: Path) -> None:
    lines = tail(then / "ledger.jsonl")
    last_unix_s = json.loads(lines[-1])["at_unix_s"]
    ledger = Ledger(clock=lambda: 50.0, wall=lambda: last_unix_s + 10.0)
    assert ledger.read(lines) == 0
    events = ledger.book.since(0)
    assert len(events) == len(lines)
    assert events[-1].at_s == pytest.approx(40.0)
    e0 = [(one.kind.value, one.before, one.after) for one in ledger.book.related(pool="chat", engine="e0")]
    assert e0[:3] == [
        ("health", "HEALTHY", "UNHEALTHY"),
        ("cut", "off", "on"),
        ("verdict", "hung", "producing"),
    ]
    (hung, *_) = ledger.book.related(pool="chat", engine="e0")
    assert hung.evidence == "hung: 1 requests in flight and no token for 1.0 s (allowed 1 s)"
    assert hung.rule == "EnginePool.spec.probe.stallAfter"


def test_the_recording(then: Path) -> None:
    reading = RecordingReader()
    every = list(read_rounds(then / "recording.jsonl", reading))
    assert len(every) > 30
    assert not reading.torn
    assert {one.engine: said.report.verdict for one, said in reading.engines.items() if said.report} == {
        "e0": Verdict.READY,
        "e1": Verdict.READY,
        "e2": Verdict.READY,
        "e3": Verdict.DRAINING,
    }
    (order,) = reading.orders.values()
    assert (order.action, order.by, order.force) == (OrderAction.DRAIN, "ops", True)
    assert set(reading.traffic["chat"].engines) == {"e0", "e1", "e2", "e3"}
    assert reading.proxies_by_role == {"gateway": 1}
    assert "e0" in {
        name
        for one in every
        for name, said in one.engines.get("chat", {}).items()
        if said.report is not None and said.report.verdict is Verdict.HUNG
    }


def test_the_recording_is_decided_again(then: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under its own policies, which come out as they were kept."""
    kept = LastGoodStore(then / "state").read()
    assert kept is not None
    for name, text in kept.texts.items():
        (tmp_path / Path(name).name).write_text(text)
    assert main(["replay", str(then / "recording.jsonl"), "-f", str(tmp_path), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rounds"] == len(list(read_rounds(then / "recording.jsonl", RecordingReader())))


def test_the_history_of_policies(before: Path, tmp_path: Path) -> None:
    shutil.copytree(before / "state" / "history", tmp_path / "history")
    archive = VersionArchive(tmp_path / "history")
    archive.restore()
    assert archive.damaged == ()
    told = [(one.number, one.source, one.by, one.reason, one.restores) for one in archive.versions]
    assert told == [
        (1, VersionSource.FILES, "files", "", 0),
        (2, VersionSource.FILES, "files", "", 0),
        (3, VersionSource.ROLLBACK, "ops", "the edit was for another fleet", 1),
        (4, VersionSource.FILES, "files", "", 0),
    ]
    first, second, third, fourth = archive.versions
    assert first.texts == third.texts
    assert "serviceTime: 200ms" in first.texts["policies/all.yaml"]
    assert "serviceTime: 250ms" in second.texts["policies/all.yaml"]
    assert sorted(fourth.texts) == ["policies/all.yaml", "policies/more.yaml"]
    assert third.beside == second.digest, "it replaced the version from the files"
    assert archive.last is fourth
    assert archive.next_number() == 5


def test_a_history_of_the_lab_is_judged_as_then(
    then: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(lzma.decompress((then / "experiments" / "history.jsonl.xz").read_bytes()))
    (said,) = json.loads((then / "experiments" / "verdict.json").read_text())
    seen = history(path)
    assert seen.unread == ()
    assert len(seen.requests) > 1_000
    assert [one.fault["kind"] for one in seen.outages if one.end_s is None] == []
    assert verdict(seen).answer.value == said["answer"]
    assert chaos(["check", str(path), "-o", "json"]) == {"yes": 0, "no": 1, "unknown": 3}[said["answer"]]
    (now,) = json.loads(capsys.readouterr().out)
    found = {one["check"]: one for one in now["findings"]}
    for one in said["findings"]:
        again = found[one["check"]]
        assert again["answer"] == one["answer"], one["check"]
        # Words change between versions, figures do not.
        assert re.findall(r"[\d.]+", again["measured"]) == re.findall(r"[\d.]+", one["measured"]), one["check"]
