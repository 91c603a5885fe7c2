"""Orders over a restart: an invalid one is reported, and the others stay."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from xds_server.ledger.operator_orders import FILE_NAME, Orders

GOOD: dict[str, Any] = {
    "pool": "chat", "engine": "r1", "action": "eject", "until_unix_s": 2000.0, "reason": "burns", "by": "ann",
}  # fmt: skip


def restored(folder: Path, *kept: object) -> tuple[Orders, list[str]]:
    """The orders restored from such a file, and the reasons for ignored ones."""
    (folder / FILE_NAME).write_text(json.dumps(kept))
    orders = Orders(folder, clock=lambda: 50.0, wall=lambda: 1000.0)
    with capture_logs() as logs:
        orders.restore()
    return orders, [one["reason"] for one in logs if one["event"] == "orders.ignored"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"action": "explode"}, "the order for chat/r2: action is 'explode'"),
        ({"until_unix_s": "soon"}, "the order for chat/r2: until_unix_s is 'soon'"),
        ({"format": 9}, "the order for chat/r2 has format 9"),
        ({"format": "x"}, "the order for chat/r2: format is 'x'"),
    ],
)
def test_invalid_order_keeps_the_others(tmp_path: Path, wrong: dict[str, object], said: str) -> None:
    orders, ignored = restored(tmp_path, {**GOOD, "engine": "r2", **wrong}, GOOD)
    assert [(str(key), one.action) for key, one in orders.active(50.0).items()] == [("chat/r1", "eject")]
    assert len(ignored) == 1
    assert said in ignored[0]


@pytest.mark.parametrize("kept", [{}, [1], ["x"], [[GOOD]]])
def test_invalid_orders_file_is_only_reported(tmp_path: Path, kept: object) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps(kept))
    orders = Orders(tmp_path, clock=lambda: 50.0, wall=lambda: 1000.0)
    with capture_logs() as logs:
        orders.restore()
    assert not orders.active(50.0)
    assert [one["event"] for one in logs] == ["orders.ignored"]
