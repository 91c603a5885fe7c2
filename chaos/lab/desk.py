"""How a lab that is held open takes orders: HTTP on loopback, JSON both ways.

====== ================ ========================================================================================
GET    ``/``            what stands here: the subject, engines, proxies with the addresses to ask, faults that
                        hold
POST   ``/faults``      break something, as a scenario says it:
                        ``{"fault": {"kind": "hang"}, "target": {"zone": "b"}, "lasts": "5s"}``, without ``lasts``
                        until it is healed; when ``{"id": "by-hand-1", "targets": ["e1"]}`` comes, it bites
DELETE ``/faults/{id}`` heal it; when the answer comes it is healed
DELETE ``/faults``      heal everything
====== ================ ========================================================================================

A wrong order is answered by 400, a fault that cannot be pulled here or would break more than is allowed by 409,
both with ``{"error": ...}``.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from chaos.faults.library import AnyFault
from chaos.lab.lab import BlastRadiusError, Lab
from chaos.lab.site import LeverError
from chaos.scenario.model import Target
from policies.document import Spec, described
from policies.quantity import Duration


class Order(Spec):
    """What somebody wants broken."""

    fault: AnyFault = described(..., "What goes wrong: its kind and its settings.")
    target: Target = described(Target, "Whom it hits.")
    lasts: Duration | None = described(
        None, "When it is healed, from now; by order when absent.", unit="duration", gt=0, le=3600
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Held:
    """A fault that holds until ``heal`` is set; ``done`` when it is healed."""

    order: Order
    targets: tuple[str, ...]
    heal: asyncio.Event
    done: "asyncio.Task[None]"


class Desk:
    """Made by ``opened``. ``url`` is where it takes orders."""

    def __init__(self, lab: Lab) -> None:
        self.url = ""
        self._lab = lab
        self._held: dict[str, _Held] = {}

    def app(self) -> web.Application:
        """Its pages."""
        app = web.Application()
        app.router.add_get("/", self._standing)
        app.router.add_post("/faults", self._break)
        app.router.add_delete("/faults", self._heal_all)
        app.router.add_delete("/faults/{id}", self._heal)
        return app

    async def heal(self) -> None:
        """Heal everything that holds."""
        held = list(self._held.values())
        for one in held:
            one.heal.set()
        await asyncio.gather(*(one.done for one in held))

    async def _standing(self, _: web.Request) -> web.Response:
        site, plan = self._lab.site, self._lab.plan
        engines = [
            {"name": one.name, "zone": one.zone, "pool": one.pool, "url": f"http://127.0.0.1:{one.port}"}
            for one in site.engines.values()
        ]
        proxies = [{"name": one.name, "zone": one.zone, "url": one.url} for one in site.proxies.values()]
        asked = {"path": plan.asking.path, "model": plan.asking.model, "headers": dict(plan.asking.headers)}
        faults = {name: _as_object(one) for name, one in self._held.items()}
        return web.json_response(
            {
                "subject": plan.subject.name,
                "pool": plan.pool,
                "ask": asked,
                "engines": engines,
                "proxies": proxies,
                "control_plane": site.control_plane,
                "faults": faults,
            }
        )

    async def _break(self, request: web.Request) -> web.Response:
        try:
            order = Order.model_validate(await request.json())
        except (json.JSONDecodeError, ValidationError) as problem:
            return web.json_response({"error": _first(problem)}, status=400)
        bites: asyncio.Future[tuple[str, tuple[str, ...]]] = asyncio.get_running_loop().create_future()
        heal = asyncio.Event()
        done = asyncio.create_task(self._hold(order, heal, bites))
        try:
            name, targets = await bites
        except (LeverError, BlastRadiusError) as problem:
            return web.json_response({"error": str(problem)}, status=409)
        self._held[name] = _Held(order=order, targets=targets, heal=heal, done=done)
        done.add_done_callback(lambda _: self._held.pop(name, None))
        return web.json_response({"id": name, "targets": targets}, status=201)

    async def _hold(
        self, order: Order, heal: asyncio.Event, bites: "asyncio.Future[tuple[str, tuple[str, ...]]]"
    ) -> None:
        try:
            async with self._lab.strike(order.fault, order.target) as outage:
                bites.set_result((outage.id, outage.targets))
                async with asyncio.timeout(order.lasts):
                    await heal.wait()
        except TimeoutError:
            return
        except (LeverError, BlastRadiusError) as problem:
            if bites.done():
                raise
            bites.set_exception(problem)

    async def _heal(self, request: web.Request) -> web.Response:
        held = self._held.get(request.match_info["id"])
        if held is None:
            return web.json_response({"error": f"no such fault holds; there are {list(self._held)}"}, status=404)
        held.heal.set()
        await held.done
        return web.json_response({"healed": [request.match_info["id"]]})

    async def _heal_all(self, _: web.Request) -> web.Response:
        names = list(self._held)
        await self.heal()
        return web.json_response({"healed": names})


@asynccontextmanager
async def opened(lab: Lab, port: int = 0) -> AsyncIterator[Desk]:
    """Orders are taken inside the block; when it is left, everything is healed."""
    desk = Desk(lab)
    runner = web.AppRunner(desk.app(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        host, port = runner.addresses[0][:2]
        desk.url = f"http://{host}:{port}"
        yield desk
    finally:
        await desk.heal()
        await runner.cleanup()


def _as_object(held: _Held) -> dict[str, Any]:
    said: dict[str, Any] = held.order.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {**said, "targets": held.targets}


def _first(problem: ValueError) -> str:
    if not isinstance(problem, ValidationError):
        return f"not JSON: {problem}"
    first = problem.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
