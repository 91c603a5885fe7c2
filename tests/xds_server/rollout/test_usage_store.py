"""Usage of tenants on disk: what a start takes up, and what it does with files that it cannot read."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from xds_server.app.usage_persistence import restore_usage
from xds_server.rollout import usage_store
from xds_server.telemetry.usage_by_day import UsageByDay, UsageRow

DAY, BEFORE = date(2026, 11, 28), date(2026, 11, 27)
ROWS = (UsageRow(port=8080, tenant="a", model="m", requests=7.0, tokens=70.5, corrected=30.25),)


def test_days_come_back(tmp_path: Path) -> None:
    usage_store.save(tmp_path, DAY, ROWS)
    usage_store.save(tmp_path, BEFORE, ROWS * 2)
    assert usage_store.read(tmp_path) == ({BEFORE: ROWS * 2, DAY: ROWS}, ())
    usage_store.forget(tmp_path, [DAY])
    assert usage_store.read(tmp_path) == ({DAY: ROWS}, ())


def test_file_of_an_older_server_has_no_correction(tmp_path: Path) -> None:
    path = usage_store.usage_path(tmp_path, DAY)
    row = {"port": 8080, "tenant": "a", "model": "m", "requests": 7.0, "tokens": 70.5}
    usage_store._FILE.write(path, {"day": DAY.isoformat(), "rows": [row]})
    assert usage_store.read(tmp_path) == ({DAY: (replace(ROWS[0], corrected=70.5),)}, ())


def test_first_start_has_no_usage(tmp_path: Path) -> None:
    assert usage_store.read(tmp_path) == ({}, ())


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"requests": 7.0', '"requests": 1.0'),
        lambda text: text.replace("usage/1", "usage/9"),
        lambda _: "",
        lambda _: "\x00" * 100,
    ],
)
def test_damaged_day_is_reported_moved_away_and_costs_no_other_day(tmp_path: Path, damage) -> None:
    usage_store.save(tmp_path, DAY, ROWS)
    usage_store.save(tmp_path, BEFORE, ROWS)
    path = usage_store.usage_path(tmp_path, DAY)
    text = path.read_text()
    broken = damage(text)
    assert broken != text
    path.write_text(broken)
    found, flaws = usage_store.read(tmp_path)
    assert found == {BEFORE: ROWS}
    [reason] = flaws
    assert str(path) in reason
    assert path.with_name(f"{path.name}.damaged").read_text() == broken
    assert usage_store.read(tmp_path) == ({BEFORE: ROWS}, ())


def test_file_of_another_day_is_not_counted_twice(tmp_path: Path) -> None:
    usage_store.save(tmp_path, DAY, ROWS)
    copied = usage_store.usage_path(tmp_path, BEFORE)
    copied.write_bytes(usage_store.usage_path(tmp_path, DAY).read_bytes())
    found, [reason] = usage_store.read(tmp_path)
    assert found == {DAY: ROWS}
    assert "is of another day, 2026-11-28" in reason


def test_restored_book_has_the_days_and_nothing_to_write(tmp_path: Path) -> None:
    usage_store.save(tmp_path, DAY, ROWS)
    book = UsageByDay()
    restore_usage(tmp_path, book)
    assert book.rows(DAY) == ROWS
    assert not book.changed
