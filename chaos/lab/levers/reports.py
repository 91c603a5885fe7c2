"""Reports that lie: rules for the relay between agents and the control plane."""

from typing import ClassVar

from chaos.faults.pulls import Pull, Reports
from chaos.lab.levers.orders import Orders
from chaos.lab.site import Site


class ReportLever:
    """Where no agent stands there is no report, and nothing to lie about."""

    handles: ClassVar[tuple[type, ...]] = (Reports,)

    def __init__(self, site: Site) -> None:
        self._site = site
        self._orders = Orders(site.session)

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
        if self._site.reports:
            lie = {"engine": pull.engine, "verdict": pull.verdict or None, "clock_skew_s": pull.clock_skew_s}
            await self._orders.give(pull, f"{self._site.reports}/rules", lie)

    async def release(self, pull: Pull) -> None:
        assert isinstance(pull, Reports)  # noqa: S101 -- what it handles
        await self._orders.take_back(pull)
