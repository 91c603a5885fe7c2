"""Writes back to the cluster what became of its policies and engines, while this replica holds the Lease.

Level-triggered: each look makes everything that should be written from the present, and writes what differs from
what was last seen. A replica without the Lease makes nothing and writes nothing.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from xds_server.kube.api import Api
from xds_server.writeback.scene import Scene

LOOK_S: Final = 0.5
"""Longest time between two looks: what only time changes is written that late at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """The Lease that says who writes, and who would."""

    namespace: str
    lease: str
    identity: str


class Writer:
    """One replica's hand in the cluster; see ``run``."""

    def __init__(self, api: Api, writing: Writing, scene: Callable[[int], Scene | None]) -> None:
        """``scene`` says how it stands, with the ledger's events after a number; None where there is none."""
        self._api = api
        self._writing = writing
        self._scene = scene
        self._wake = asyncio.Event()

    @property
    def holds(self) -> bool:
        """Whether this replica is the one that writes."""
        return False

    def look_again(self) -> None:
        """Note that something to be written may be different now."""
        self._wake.set()

    async def run(self) -> None:
        """Write for ever; when cancelled, stop, and let go of the Lease for the next."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            self._wake.clear()
