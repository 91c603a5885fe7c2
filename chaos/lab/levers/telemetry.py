"""What proxies say and are told, spoilt on its way: orders for the wiretap before the control plane."""

from typing import ClassVar

from chaos.faults.pulls import Corrupt, Pull, Telemetry
from chaos.lab.levers.orders import Orders
from chaos.lab.site import Site


class WiretapLever:
    """Has telemetry lost or falsified, and configuration corrupted."""

    handles: ClassVar[tuple[type, ...]] = (Telemetry, Corrupt)

    def __init__(self, site: Site) -> None:
        self._wiretap = site.wiretap
        self._orders = Orders(site.session)

    def refusal(self, pull: Pull) -> str:  # noqa: ARG002 -- every proxy's streams go through it
        return "" if self._wiretap else "no proxy has a control plane here"

    async def pull(self, pull: Pull) -> None:
        match pull:
            case Telemetry():
                order = {"proxy": pull.proxy, "lost": pull.lost, "says": pull.says}
            case Corrupt():
                order = {"proxy": pull.proxy, "corrupt": pull.type}
            case _:
                raise AssertionError(pull)  # see handles
        await self._orders.give(pull, f"{self._wiretap}/orders", order)

    async def release(self, pull: Pull) -> None:
        await self._orders.take_back(pull)
