"""Control port of an open lab: its description, and faults that last as long as their requests.

All bodies are JSON; errors are ``{"error": ...}`` with status 400, or 403 for other sites' pages.

====== ============== =========================================================================================
GET    ``/v1/lab``    engines, proxies, addresses, and active faults
POST   ``/v1/faults`` inject a fault: ``{"fault": {"kind": "hang"}, "target": {"engine": 3}, "lasts": "10s"}``,
                      fault and target as in scenario files, ``lasts`` optional. The answer is a line of JSON when
                      the fault bites (``{"id": ..., "targets": [...]}``) and one when it is healed
                      (``{"healed": true}``); it is healed when its time is over, and when the caller hangs up
====== ============== =========================================================================================
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web
from pydantic import ValidationError

from chaos.faults.fault_registry import AnyFault
from chaos.lab.envoy_processes import NotReadyError
from chaos.lab.lab_handles import InjectionError
from chaos.lab.lab_session import BlastRadiusError, Lab
from chaos.lab.same_origin import refuse_foreign
from chaos.scenario.scenario_model import FaultTarget
from policies.document import Spec, documented_field
from policies.quantity import Duration

MAX_BODY_BYTES: Final = 64 * 1024


class FaultRequest(Spec):
    """A fault request, with the fields of a scenario."""

    fault: AnyFault = documented_field(..., "Kind and settings of the fault.")
    target: FaultTarget = documented_field(FaultTarget, "Targets to hit.")
    lasts: Duration | None = documented_field(None, "Longest duration.", unit="duration", gt=0, le=86400)


@asynccontextmanager
async def control_port(
    lab: Lab, port: int = 0, *, extend: Callable[[web.Application], None] | None = None
) -> AsyncIterator[str]:
    """Serve the control port inside the block and yield its address; on exit all its faults are healed.

    ``extend`` adds routes. Raises NotReadyError if the port is in use.
    """
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[refuse_foreign])
    desk = _Desk(lab)
    if extend is not None:
        extend(app)
    app.add_routes([web.get("/v1/lab", desk.lab), web.post("/v1/faults", desk.fault)])
    # A caller that disconnects cancels its request, which heals its fault.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
        except OSError as problem:
            raise NotReadyError(f"cannot listen on port {port}: {problem.strerror or problem}") from problem
        host, bound = runner.addresses[0][:2]
        yield f"http://{host}:{bound}"
    finally:
        await desk.heal()
        await runner.cleanup()


class _Desk:
    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._tasks: set[asyncio.Task[Any]] = set()

    async def lab(self, _: web.Request) -> web.Response:
        return web.json_response(lab_description(self._lab))

    async def fault(self, request: web.Request) -> web.StreamResponse:
        try:
            order = FaultRequest.model_validate_json(await request.text(), by_name=False)
        except ValidationError as problem:
            said = "; ".join(
                f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in problem.errors()
            )
            return _refusal(said)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a handler runs in one
        self._tasks.add(task)
        try:
            return await self._struck(request, order)
        except (InjectionError, BlastRadiusError) as problem:
            return _refusal(str(problem))
        finally:
            self._tasks.discard(task)

    async def _struck(self, request: web.Request, order: FaultRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
        async with self._lab.strike(order.fault, order.target) as outage:
            await response.prepare(request)
            await _say(response, {"id": outage.id, "targets": list(outage.targets)})
            await asyncio.sleep(float("inf") if order.lasts is None else order.lasts)
        await _say(response, {"healed": True})
        await response.write_eof()
        return response

    async def heal(self) -> None:
        """End all active faults; return once they are healed."""
        tasks = tuple(self._tasks)
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def lab_description(lab: Lab) -> Mapping[str, Any]:
    """Description of the lab, JSON-ready."""
    site = lab.site
    return {
        "subject": lab.plan.subject.name,
        "pool": lab.plan.pool,
        "control_plane": site.control_plane,
        "proxies": {
            one.name: {"url": one.url, "admin": one.admin, "zone": one.zone} for one in site.proxies.values()
        },
        "engines": {
            one.name: {
                "url": f"http://127.0.0.1:{one.port}",
                "zone": one.zone,
                "slots": one.slots,
                "pool": one.pool,
                "control": one.control,
                "agent": None if one.agent_http is None else f"http://127.0.0.1:{one.agent_http}",
            }
            for one in site.engines.values()
        },
        "ask": {
            "path": lab.plan.asking.path,
            "model": lab.plan.asking.model,
            "headers": dict(lab.plan.asking.headers),
        },
        "faults": {
            key: {"fault": one.fault.model_dump(mode="json", by_alias=True), "targets": list(one.targets)}
            for key, one in lab.active.items()
        },
    }


async def _say(response: web.StreamResponse, record: Mapping[str, Any]) -> None:
    await response.write(json.dumps(record).encode() + b"\n")


def _refusal(why: str) -> web.Response:
    return web.json_response({"error": why}, status=400)
