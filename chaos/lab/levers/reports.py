"""Reports that lie: rules for the relay between agents and the control plane."""

import asyncio
from collections import Counter
from typing import ClassVar

import aiohttp

from chaos.faults.pulls import Pull, Reports
from chaos.lab.site import LeverError, Site

_ORDER_LIMIT_S = 20.0


class ReportLever:
    """Where no agent stands there is no report, and nothing to lie about."""

    handles: ClassVar[tuple[type, ...]] = (Reports,)

    def __init__(self, site: Site) -> None:
        self._site = site
        self._held: Counter[Reports] = Counter()

    def refusal(self, pull: Pull) -> str:
        assert isinstance(pull, Reports)  # noqa: S101 -- what it handles
        engine = self._site.engines.get(pull.engine)
        if engine is None:
            return f"there is no engine {pull.engine}"
        if engine.agent_port is not None and self._site.control_plane and not self._site.reports:
            return f"there is no relay between the agent of {pull.engine} and the control plane"
        return ""

    async def pull(self, pull: Pull) -> None:
        assert isinstance(pull, Reports)  # noqa: S101 -- what it handles
        self._held[pull] += 1
        lie = {
            "engine": pull.engine,
            "verdict": pull.verdict or None,
            "clock_skew_s": pull.clock_skew_s,
        }
        await self._order("PUT", pull, lie)

    async def release(self, pull: Pull) -> None:
        assert isinstance(pull, Reports)  # noqa: S101 -- what it handles
        self._held[pull] -= 1
        if self._held[pull] <= 0:
            del self._held[pull]
            await self._order("DELETE", pull)

    async def _order(self, method: str, pull: Reports, lie: object = None) -> None:
        if not self._site.reports:
            return
        name = f"{pull.engine}-{pull.verdict}-{pull.clock_skew_s:.0f}"
        try:
            async with (
                asyncio.timeout(_ORDER_LIMIT_S),
                self._site.session.request(method, f"{self._site.reports}/rules/{name}", json=lie) as answer,
            ):
                answer.raise_for_status()
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise LeverError(f"the relay of reports did not take an order: {problem!r}") from problem
