"""Orders over HTTP to the processes of a lab that stand between others: each pull has orders of its own."""

import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import aiohttp

from chaos.faults.pulls import Pull
from chaos.lab.site import LeverError


class Orders:
    """Named orders below one or more addresses. What several pulls order adds up; each takes back its own."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._numbers = itertools.count(1)
        self._given: dict[Pull, list[str]] = defaultdict(list)

    async def give(self, pull: Pull, below: str, order: Mapping[str, Any]) -> None:
        """PUT an order below this address; it holds on return. LeverError when it was not taken."""
        url = f"{below}/pull-{next(self._numbers)}"
        self._given[pull].append(url)
        await self._send("PUT", url, order)

    async def take_back(self, pull: Pull) -> None:
        """DELETE what one give() for this pull ordered; nothing where there was none."""
        if self._given[pull]:
            await self._send("DELETE", self._given[pull][-1], None)
            self._given[pull].pop()

    async def _send(self, method: str, url: str, order: Mapping[str, Any] | None) -> None:
        try:
            async with self._session.request(method, url, json=order) as answer:
                if answer.status != 200:
                    msg = f"{method} {url}: {answer.status}: {(await answer.text())[:500]}"
                    raise LeverError(msg)
        except aiohttp.ClientError as error:
            msg = f"{method} {url}: {error}"
            raise LeverError(msg) from error
