"""Fields of a later version are ignored; its new formats are refused by name, with a fix."""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import structlog

from chaos.history.event_codec import HistoryError
from chaos.history.history_reader import read_history
from xds_server.ledger.decision_recording import RecordingError, RecordingReader, read_rounds
from xds_server.ledger.ledger import Ledger, ledger_from
from xds_server.ledger.operator_orders import FILE_NAME as ORDERS
from xds_server.ledger.operator_orders import Orders
from xds_server.rollout.history.version_archive import VersionArchive
from xds_server.rollout.last_good import FILE_NAME as LAST_GOOD
from xds_server.rollout.last_good import LastGoodStore
from xds_server.state.versioned_file import StoreError

WAY_OUT = "run the version that wrote it, or move the file away"


def sealed(envelope: dict[str, Any]) -> str:
    """The file of an envelope, with the checksum of what is in it now."""
    text = json.dumps(envelope["payload"], sort_keys=True, separators=(",", ":"))
    return json.dumps({**envelope, "checksum": blake2b(text.encode(), digest_size=16).hexdigest()})


def grown(value: Any) -> Any:
    """The value with another field in each object of ours; names of policy files are not ours."""
    if isinstance(value, list):
        return [grown(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {"texts", "proxies_by_role", "proxies_by_zone", "numbers"}
    return {**{key: one if key in kept else grown(one) for key, one in value.items()}, "later": [1, {"x": "y"}]}


def test_last_good_policies_with_unknown_fields(before: Path, tmp_path: Path) -> None:
    envelope = json.loads((before / "state" / LAST_GOOD).read_text())
    (tmp_path / LAST_GOOD).write_text(sealed(grown(envelope)))
    assert LastGoodStore(tmp_path).read() == LastGoodStore(before / "state").read()


def test_last_good_policies_of_another_format(before: Path, tmp_path: Path) -> None:
    envelope = json.loads((before / "state" / LAST_GOOD).read_text())
    (tmp_path / LAST_GOOD).write_text(sealed({**envelope, "format": "switchgear-last-good/2"}))
    with pytest.raises(StoreError) as caught:
        LastGoodStore(tmp_path).read()
    for said in (str(tmp_path / LAST_GOOD), "switchgear-last-good/2", "switchgear-last-good/1", WAY_OUT):
        assert said in str(caught.value)


def history_of(before: Path, folder: Path, **changed: Any) -> VersionArchive:
    """The history of then, its newest version as a later server might have written it."""
    folder.mkdir()
    for path in (before / "state" / "history").iterdir():
        envelope = json.loads(path.read_text())
        if path.name == "00000004.json":
            envelope = {**grown(envelope), **changed}
        (folder / path.name).write_text(sealed(envelope))
    archive = VersionArchive(folder)
    archive.restore()
    return archive


def test_history_versions_with_unknown_fields(before: Path, tmp_path: Path) -> None:
    archive = history_of(before, tmp_path / "history")
    assert ([one.number for one in archive.versions], archive.damaged) == ([1, 2, 3, 4], ())


def test_a_version_of_another_format_is_left_alone(before: Path, tmp_path: Path) -> None:
    folder = tmp_path / "history"
    with structlog.testing.capture_logs() as logs:
        archive = history_of(before, folder, format="switchgear-version/2")
    assert ([one.number for one in archive.versions], archive.damaged) == ([1, 2, 3], ("00000004.json",))
    assert archive.next_number() == 5
    (line,) = [one for one in logs if one["event"] == "history.skipped"]
    assert line["file"] == str(folder / "00000004.json")
    assert WAY_OUT in line["reason"]
    archive.flush()
    assert (folder / "00000004.json").is_file(), "a later upgrade finds it"


def test_an_order_of_another_format_is_left_out(before: Path, tmp_path: Path) -> None:
    (said,) = json.loads((before / "state" / ORDERS).read_text())
    later = {**said, "engine": "e2", "action": "eject", "format": 2}
    (tmp_path / ORDERS).write_text(json.dumps([later, {**said, "later": 1}]))
    orders = Orders(tmp_path, clock=lambda: 50.0, wall=lambda: said["given_at_unix_s"])
    with structlog.testing.capture_logs() as logs:
        orders.restore()
    assert [str(key) for key in orders.active(50.0)] == ["chat/e1"]
    (line,) = [one for one in logs if one["event"] == "orders.ignored"]
    assert "chat/e2 has format 2" in line["reason"]
    assert WAY_OUT in line["reason"]


def test_lines_of_a_ledger_that_two_versions_wrote(before: Path) -> None:
    """A server of a later version wrote the second half, in a format of its own."""
    lines = (before / "ledger.jsonl").read_text().splitlines()
    half = len(lines) // 2
    later = [f'{{"format":2,{line.removeprefix("{")}' for line in lines[half:]]
    ours = [f'{{"format":1,{line.removeprefix("{")}' for line in lines[:half]]
    with structlog.testing.capture_logs() as logs:
        ledger = ledger_from(None, [*lines[:1], *ours[1:], *later, '{"format":'])
    assert len(ledger.book.since(0)) == half
    (line,) = [one for one in logs if one["event"] == "ledger.skipped"]
    assert (line["lines"], line["reason"].partition(" ")[0]) == (len(later) + 1, str(len(later)))


def test_ledger_lines_with_unknown_fields(before: Path) -> None:
    lines = (before / "ledger.jsonl").read_text().splitlines()
    assert Ledger().read([json.dumps(grown(json.loads(line))) for line in lines]) == 0


def test_a_recording_of_another_format(before: Path, tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    text = (before / "recording.jsonl").read_text()
    path.write_text(text.replace("switchgear-recording/1", "switchgear-recording/2", 1))
    with pytest.raises(RecordingError) as caught:
        list(read_rounds(path, RecordingReader()))
    assert str(caught.value).startswith(f"{path}:1: format 'switchgear-recording/2'")
    assert WAY_OUT in str(caught.value)


def test_a_history_of_the_lab_of_another_format(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"event":"began","format":2,"engines":{"by":"zone"}}\n')
    with pytest.raises(HistoryError, match="check it with the version that wrote it") as caught:
        read_history(path)
    assert str(caught.value).startswith(f"{path}:1:")
