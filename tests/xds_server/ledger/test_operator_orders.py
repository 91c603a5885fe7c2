"""Orders over a restart: an invalid one is reported, and the others stay."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.eventually import eventually
from xds_server.ledger.operator_orders import FILE_NAME, Orders
from xds_server.model.fleet import EngineId
from xds_server.model.order import Order, OrderAction, pool_key

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


async def test_order_for_a_pool_survives_a_restart_with_its_level(tmp_path: Path) -> None:
    orders = Orders(tmp_path, clock=lambda: 50.0, wall=lambda: 1000.0)
    key = pool_key("chat")
    orders.give(Order(engine=key, action=OrderAction.DEGRADE, until_s=90.0, reason="swap", by="ann", level=3))
    orders.give(Order(engine=EngineId("chat", "r1"), action=OrderAction.DRAIN, until_s=90.0, reason="swap"))
    saving = asyncio.create_task(orders.run())
    try:
        await eventually((tmp_path / FILE_NAME).is_file, "orders are saved", 60.0)
    finally:
        saving.cancel()
    again = Orders(tmp_path, clock=lambda: 60.0, wall=lambda: 1010.0)
    again.restore()
    assert again.active(60.0) == orders.active(60.0)
    assert again.active(60.0)[key].level == 3
    assert again.end(key, "bob") is not None
    assert list(again.active(60.0)) == [EngineId("chat", "r1")]
