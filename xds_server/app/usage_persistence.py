"""Keeps usage of tenants on disk: quotas of days and months do not begin again with the server."""

import asyncio
from datetime import date
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from xds_server.app.persistence import write_state
from xds_server.rollout import usage_store
from xds_server.state.atomic_file import RETRY_S
from xds_server.state.write_failures import WriteFailures
from xds_server.telemetry.usage_by_day import UsageByDay

WRITE_EACH_S: Final = 2.0
"""Minimum write interval, and the most usage that a killed server loses."""

_log = structlog.get_logger()


def restore_usage(folder: Path, book: UsageByDay) -> None:
    """Read the usage of previous runs; log unusable files."""
    days, flaws = usage_store.read(folder)
    for reason in flaws:
        _log.warning("store.ignored", reason=reason)
    for day, rows in days.items():
        book.restore(day, rows)


async def keep_usage(folder: Path, book: UsageByDay, disk: WriteFailures) -> None:
    """Write the days that changed, until cancelled."""
    kept: tuple[date, ...] = ()
    while True:
        await asyncio.sleep(WRITE_EACH_S)
        days, pause_s = sorted(book.changed), 0.0
        for day in days:
            # Requests that end during the write change the day again.
            book.changed.discard(day)
            path = usage_store.usage_path(folder, day)
            if not await write_state(disk, path, partial(usage_store.save, folder, day, book.rows(day))):
                book.changed.add(day)
                pause_s = RETRY_S
        if kept != book.days:
            kept = book.days
            await asyncio.to_thread(usage_store.forget, folder, kept)
        await asyncio.sleep(pause_s)
