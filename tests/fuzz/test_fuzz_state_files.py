"""Files of our own, spoiled, and the JSON of the admin port: reported and left alone, never half believed."""

import json
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import HealthCheck, given, settings
from pydantic import ValidationError

from tests.fuzz.mutations import broken
from xds_server.admin.admin_server import _ORDER
from xds_server.ledger.decision_recording import RecordingError, RecordingReader, read_rounds
from xds_server.ledger.jsonl_writer import JsonlWriter, tail
from xds_server.ledger.ledger import Ledger
from xds_server.ledger.operator_orders import FILE_NAME as ORDERS_FILE
from xds_server.ledger.operator_orders import Orders
from xds_server.rollout.last_good import FILE_NAME, LastGoodStore
from xds_server.state.versioned_file import StoreError

FORMATS = Path(__file__).parents[1] / "data" / "formats"
FUZZ = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def recorded(name: str) -> tuple[bytes, ...]:
    return ((FORMATS / name).read_bytes(),)


@FUZZ
@given(content=broken(recorded("last-good.1.json")))
def test_mutated_last_good_state_is_intact_or_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    sound = json.loads(recorded("last-good.1.json")[0])["payload"]
    try:
        found = LastGoodStore(tmp_path).read()
    except StoreError:
        return
    assert found is not None
    assert dict(found.texts) == sound["texts"], "a checksum lets nothing through that was not written"


@FUZZ
@given(content=broken(recorded("orders.1.json")))
def test_mutated_orders_file_is_restored_or_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ORDERS_FILE).write_bytes(content)
    orders = Orders(tmp_path, clock=lambda: 50.0, wall=lambda: 1_795_289_500.0)
    orders.restore()
    for order in orders.active(50.0).values():
        assert 50.0 < order.until_s <= 50.0 + 7 * 86_400.0


@FUZZ
@given(content=broken(recorded("ledger.1.jsonl")))
def test_mutated_ledger_lines_are_events_or_skipped(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    lines = tail(path)
    foreign = Ledger(clock=lambda: 50.0, wall=lambda: 1_795_289_500.0).read(lines)
    assert 0 <= foreign <= len(lines)


@FUZZ
@given(content=broken(recorded("recording.1.jsonl")))
def test_mutated_recording_is_read_up_to_the_damage(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_bytes(content)
    try:
        for _ in read_rounds(path, RecordingReader()):
            pass
    except RecordingError as error:
        assert str(path) in str(error)  # noqa: PT017 - a sound file raises nothing


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_a_text_that_seems_to_end_a_line_does_not(tmp_path: Path, end: str) -> None:
    path = tmp_path / "ledger.jsonl"
    line = json.dumps({"reason": f"one{end}two"}, ensure_ascii=False)
    JsonlWriter(path, 10_000)._append([line, line])
    assert tail(path) == [line, line]


ORDERS = (
    b'{"engine":"chat/e0","action":"drain","for_s":3600,"reason":"new driver","by":"ops","force":false}',
    b'{"engine":"chat/e0","action":"eject","for_s":1e9,"reason":""}',
)


@FUZZ
@given(content=broken(ORDERS))
def test_mutated_order_request_is_valid_or_rejected(content: bytes) -> None:
    try:
        asked = _ORDER.validate_json(content)
    except ValidationError as error:
        assert error.errors()[0]["msg"]  # noqa: PT017 - a sound order raises nothing
        return
    assert isinstance(asked.engine, str)
    orders = Orders(clock=lambda: 50.0)
    assert not orders.active(50.0)


@pytest.mark.parametrize("query", ["", "?since=" + "9" * 5_000, "?since=²", "?name=%00%1b", "?a=1&a=2"])
def test_queries_are_text(query: str) -> None:
    """aiohttp hands on whatever a query says."""
    request: web.Request = make_mocked_request("GET", f"/v1/events{query}")
    assert all(isinstance(value, str) for value in request.query.values())
