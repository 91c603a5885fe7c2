"""Rules over HTTP for the lab's relay processes; each action has its own rules."""

import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

import aiohttp

from chaos.faults.actions import CorruptConfig, FalsifyReports, FalsifyTelemetry, FaultAction
from chaos.lab.lab_handles import InjectionError, LabHandles


class ReportInjector:
    """Falsifies agent reports; a lab without agents has nothing to falsify."""

    handles: ClassVar[tuple[type, ...]] = (FalsifyReports,)

    def __init__(self, site: LabHandles) -> None:
        self._site = site
        self._orders = TapRuleClient(site.session)

    def refusal(self, pull: FaultAction) -> str:
        assert isinstance(pull, FalsifyReports)  # noqa: S101 -- what it handles
        engine = self._site.engines.get(pull.engine)
        if engine is None:
            return f"unknown engine {pull.engine}"
        if engine.agent_port is not None and self._site.control_plane and not self._site.reports:
            return f"no agent tap between the agent of {pull.engine} and the control plane"
        return ""

    async def inject(self, pull: FaultAction) -> None:
        assert isinstance(pull, FalsifyReports)  # noqa: S101 -- what it handles
        if self._site.reports:
            lie = {"engine": pull.engine, "verdict": pull.verdict or None, "clock_skew_s": pull.clock_skew_s}
            await self._orders.put_rule(pull, f"{self._site.reports}/rules", lie)

    async def revert(self, pull: FaultAction) -> None:
        assert isinstance(pull, FalsifyReports)  # noqa: S101 -- what it handles
        await self._orders.delete_rule(pull)


class XdsTapInjector:
    """Drops or falsifies telemetry, and corrupts configuration."""

    handles: ClassVar[tuple[type, ...]] = (FalsifyTelemetry, CorruptConfig)

    def __init__(self, site: LabHandles) -> None:
        self._wiretap = site.wiretap
        self._orders = TapRuleClient(site.session)

    def refusal(self, pull: FaultAction) -> str:  # noqa: ARG002 -- every proxy's streams pass the xDS tap
        return "" if self._wiretap else "this lab has no control plane"

    async def inject(self, pull: FaultAction) -> None:
        match pull:
            case FalsifyTelemetry():
                order = {"proxy": pull.proxy, "lost": pull.lost, "says": pull.says}
            case CorruptConfig():
                order = {"proxy": pull.proxy, "corrupt": pull.type}
            case _:
                raise AssertionError(pull)  # not in ``handles``
        await self._orders.put_rule(pull, f"{self._wiretap}/orders", order)

    async def revert(self, pull: FaultAction) -> None:
        await self._orders.delete_rule(pull)


class TapRuleClient:
    """Named rules at one or more control URLs. Rules of several actions add up; each action removes its own."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._numbers = itertools.count(1)
        self._given: dict[FaultAction, list[str]] = defaultdict(list)

    async def put_rule(self, pull: FaultAction, below: str, order: Mapping[str, Any]) -> None:
        """PUT a rule at this URL; in effect on return. Raises InjectionError if refused."""
        url = f"{below}/pull-{next(self._numbers)}"
        self._given[pull].append(url)
        await self._send("PUT", url, order)

    async def delete_rule(self, pull: FaultAction) -> None:
        """DELETE one rule of this action, if any."""
        if self._given[pull]:
            await self._send("DELETE", self._given[pull][-1], None)
            self._given[pull].pop()

    async def _send(self, method: str, url: str, order: Mapping[str, Any] | None) -> None:
        try:
            async with self._session.request(method, url, json=order) as answer:
                if answer.status != 200:
                    msg = f"{method} {url}: {answer.status}: {(await answer.text())[:500]}"
                    raise InjectionError(msg)
        except aiohttp.ClientError as error:
            msg = f"{method} {url}: {error}"
            raise InjectionError(msg) from error
