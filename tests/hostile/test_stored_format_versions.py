"""Files of earlier versions are read; fields of later ones are ignored, later formats are refused by name."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.proto import engine_report_pb2 as pb
from engine.report import ReportSource, Verdict
from engine.report_wire import SCHEMA_VERSION, ReportError, decode, encode
from xds_server.ledger.decision_recording import FORMAT as RECORDING_FORMAT
from xds_server.ledger.decision_recording import RecordingError, RecordingReader, read_rounds
from xds_server.ledger.jsonl_writer import tail
from xds_server.ledger.ledger import Ledger
from xds_server.ledger.operator_orders import FILE_NAME as ORDERS_FILE
from xds_server.ledger.operator_orders import Orders
from xds_server.model.order import OrderAction
from xds_server.rollout.last_good import FILE_NAME, FORMAT, LastGoodStore
from xds_server.state.versioned_file import StoreError

FORMATS = Path(__file__).parents[1] / "data" / "formats"
WRITTEN_AT_UNIX_S = 1_795_289_445.0
LATER_FIELD = b"\xba\x3e\x05later"  # field 999, a text


def read(data: bytes) -> Any:
    return decode(data, pool="chat", engine="e0", received_at_s=7.0)


def test_the_last_good_policies_of_then(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes((FORMATS / "last-good.1.json").read_bytes())
    kept = LastGoodStore(tmp_path).read()
    assert kept is not None
    assert "kind: EnginePool" in kept.texts["policies/all.yaml"]
    assert (kept.digest, dict(kept.proxies_by_zone)) == ("2726c805d73cb635e26d4555a9d7c3dc", {"z1": 1})


def test_a_later_format_of_them_is_named_and_left_alone(tmp_path: Path) -> None:
    text = (FORMATS / "last-good.1.json").read_text()
    (tmp_path / FILE_NAME).write_text(text.replace(FORMAT, "switchgear-last-good/2"))
    with pytest.raises(StoreError, match=r"switchgear-last-good/2.*this version reads"):
        LastGoodStore(tmp_path).read()


@pytest.mark.parametrize("added", [{}, {"ticket": "OPS-1", "weights": [1, 2]}], ids=["then", "later"])
def test_the_orders_of_then(tmp_path: Path, added: dict[str, object]) -> None:
    said = json.loads((FORMATS / "orders.1.json").read_text())
    (tmp_path / ORDERS_FILE).write_text(json.dumps([{**one, **added} for one in said]))
    orders = Orders(tmp_path, clock=lambda: 50.0, wall=lambda: WRITTEN_AT_UNIX_S)
    orders.restore()
    (order,) = orders.active(50.0).values()
    assert (str(order.engine), order.action, order.reason, order.by) == (
        "chat/e1",
        OrderAction.DRAIN,
        "new driver",
        "ops",
    )


def later(lines: list[str]) -> Iterator[str]:
    """The lines as a later version might write them."""
    for line in lines:
        yield json.dumps({**json.loads(line), "later": {"by": [1, "x"]}})


@pytest.mark.parametrize("change", [list, later], ids=["then", "later"])
def test_the_ledger_of_then(change: Any) -> None:
    lines = list(change(tail(FORMATS / "ledger.1.jsonl")))
    ledger = Ledger(clock=lambda: 50.0, wall=lambda: WRITTEN_AT_UNIX_S)
    assert (ledger.read(lines), len(lines)) == (0, 12)


@pytest.mark.parametrize("change", [list, later], ids=["then", "later"])
def test_the_recording_of_then(tmp_path: Path, change: Any) -> None:
    lines = list(change((FORMATS / "recording.1.jsonl").read_text().splitlines()))
    path = tmp_path / "recording.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    reading = RecordingReader()
    assert len(list(read_rounds(path, reading))) == len(lines) - 1
    assert {str(key) for key in reading.engines} == {"chat/e0", "chat/e1"}


def test_a_later_format_of_recordings_is_named(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    text = (FORMATS / "recording.1.jsonl").read_text()
    path.write_text(text.replace(RECORDING_FORMAT, "switchgear-recording/2", 1))
    with pytest.raises(RecordingError, match=r"switchgear-recording/2.*this version reads"):
        list(read_rounds(path, RecordingReader()))


def test_the_report_of_an_agent_of_then() -> None:
    report = read((FORMATS / "report.1.bin").read_bytes())
    assert (report.verdict, report.source, report.model) == (Verdict.READY, ReportSource.AGENT, "fake-model")
    assert report.slots == 8


def test_the_report_of_a_later_agent() -> None:
    """A later schema, unknown fields, and later enum values."""
    data = (FORMATS / "report.1.bin").read_bytes()
    message = pb.EngineReport.FromString(data)
    message.schema_version = SCHEMA_VERSION + 1
    message.gpu.action = 99  # type: ignore[assignment]  # what no version of today has
    report = read(message.SerializeToString() + LATER_FIELD)
    assert report.verdict is Verdict.READY
    assert report.gpu is not None
    assert report.gpu.action == ""
    message.verdict = 99  # type: ignore[assignment]  # the same
    with pytest.raises(ReportError, match="verdict 99 is unknown"):
        read(message.SerializeToString())


def test_the_report_of_an_earlier_agent() -> None:
    """Only the fields of the first agents: boot id, sequence and verdict."""
    least = pb.EngineReport(schema_version=1, boot_id="b", sequence=1, verdict=pb.READY)
    report = read(least.SerializeToString())
    assert (report.verdict, report.canary, report.slots) == (Verdict.READY, None, None)


def test_an_agent_of_then_reads_what_is_asked_today() -> None:
    """The question has grown a field; an agent that does not know it answers for its engine."""
    asked = pb.WatchRequest(watcher="w", pool="chat").SerializeToString()
    assert pb.WatchRequest.FromString(asked + LATER_FIELD).watcher == "w"


def test_today_writes_what_then_was_written() -> None:
    """An agent of before reads what a control plane of today passes on, field by field."""
    report = read((FORMATS / "report.1.bin").read_bytes())
    then, now = (
        pb.EngineReport.FromString((FORMATS / "report.1.bin").read_bytes()),
        pb.EngineReport.FromString(encode(report)),
    )
    assert {field.number for field, _ in then.ListFields()} <= {field.number for field, _ in now.ListFields()}
