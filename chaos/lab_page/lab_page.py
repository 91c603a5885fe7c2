"""The lab's page on its control port, and the requests of its buttons.

All bodies are JSON; errors are ``{"error": ...}`` with status 400.

====== =================== ====================================================================================
GET    ``/``               the page
GET    ``/v1/page``        what it shows: engines, answers, rate, steps
POST   ``/v1/page/fault``  ``{"engine": "chat/e0", "fault": "hang"}``, or ``null`` to heal
POST   ``/v1/page/rate``   ``{"per_second": 12}``
POST   ``/v1/page/guide``  begin the guided incident again
====== =================== ====================================================================================
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Annotated, Any, Final, TypeVar

import aiohttp
from aiohttp import web
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from chaos.faults.actions import ChangeLoad
from chaos.history.history_events import RequestRecord
from chaos.lab.lab_handles import EngineHandle, InjectionError
from chaos.lab.lab_session import BlastRadiusError, Lab
from chaos.lab_page.engine_faults import EngineFaults
from chaos.lab_page.guided_incident import Observation, ObservedEngine, Progress, advanced, step_texts
from chaos.lab_page.recent_answers import WINDOW_S, RecentAnswers
from xds_server.admin.dashboard.page_files import PAGE, add_page_files, page_files

LOOK_EVERY_S: Final = 0.5
MAX_RATE_PER_S: Final = 60.0
"""Least upper end of the slider: more than twice what the default lab's engines serve."""

_ANSWER_LIMIT_S: Final = 5.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultButton:
    """A press of a button of one engine; ``fault`` None heals."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    engine: str
    fault: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateDial:
    """A new rate of requests."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    per_second: Annotated[float, Field(ge=0)]


class LabPage:
    """The page's state. ``on_request`` counts an answer of the load, ``routes`` adds it to the control port."""

    def __init__(self, lab: Lab, *, load: bool) -> None:
        self._lab = lab
        usual_per_s = lab.plan.experiment.rate_per_s
        self._most_per_s = max(MAX_RATE_PER_S, 2 * usual_per_s)
        self._faults = EngineFaults(lab)
        self._answers = RecentAnswers()
        self._progress = Progress()
        self._rows: Mapping[str, Mapping[str, Any]] = {}
        self._contact = False
        self._change = ChangeLoad()
        self._rate_per_s = 0.0
        lab.asked.inject(self._change)
        self._set_rate(usual_per_s if load else 0.0)

    def on_request(self, request: RequestRecord) -> None:
        """Count an answer."""
        self._answers.add(request, time.monotonic())

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Observe the lab inside the block; on exit heal what the buttons have broken."""
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await self._faults.close()

    def routes(self, app: web.Application) -> None:
        """Add the page and its requests."""
        own = page_files(files("chaos.lab_page") / "page")
        dashboard = page_files(PAGE)
        shared = {"dashboard.css": dashboard["style.css"], "icon.svg": dashboard["icon.svg"]}
        app.router.add_get("/v1/page", self._state)
        app.router.add_post("/v1/page/fault", self._fault)
        app.router.add_post("/v1/page/rate", self._rate)
        app.router.add_post("/v1/page/guide", self._guide)
        add_page_files(app, "/", {**own, **shared})

    async def _state(self, request: web.Request) -> web.Response:
        now_s = time.monotonic()
        admin = self._lab.site.control_plane
        figures = self._answers.figures(now_s)
        state = {
            "subject": self._lab.plan.subject.name,
            "admin": admin,
            "contact": self._contact,
            "engines": [self._engine(key, one) for key, one in self._engines().items()],
            "answers": {**asdict(figures), "window_s": WINDOW_S},
            "chart": self._answers.chart(now_s),
            "rate": {"per_second": self._rate_per_s, "most": self._most_per_s},
            "steps": step_texts(self._progress, self._places(f"http://{request.host}")) if admin else [],
            "finished": self._progress.finished,
        }
        return web.json_response(state, headers={"Cache-Control": "no-store"})

    async def _fault(self, request: web.Request) -> web.Response:
        order = await _body(request, TypeAdapter(FaultButton))
        one = self._engines().get(order.engine)
        if one is None:
            return _refusal(f"no engine {order.engine}; engines: {', '.join(self._engines())}")
        try:
            if order.fault is None:
                await self._faults.heal(one.name)
            elif order.fault in self._faults.buttons(one.name):
                await self._faults.inject(one.name, order.fault)
            else:
                return _refusal(f"no fault {order.fault}; faults: {', '.join(self._faults.buttons(one.name))}")
        except (InjectionError, BlastRadiusError) as problem:
            return _refusal(str(problem))
        return web.json_response({})

    async def _rate(self, request: web.Request) -> web.Response:
        dial = await _body(request, TypeAdapter(RateDial))
        if dial.per_second > self._most_per_s:
            return _refusal(f"at most {self._most_per_s:g} requests per second")
        self._set_rate(dial.per_second)
        return web.json_response({})

    async def _guide(self, request: web.Request) -> web.Response:
        await _body(request, TypeAdapter(dict[str, None]))
        self._progress = Progress()
        return web.json_response({})

    def _set_rate(self, per_second: float) -> None:
        """Change the load; the scenario's own rate is the usual one."""
        self._lab.asked.revert(self._change)
        self._change = ChangeLoad(factor=per_second / self._lab.plan.experiment.rate_per_s)
        self._lab.asked.inject(self._change)
        self._rate_per_s = per_second

    def _engines(self) -> Mapping[str, EngineHandle]:
        """Engines by ``pool/name``, as the control plane names them."""
        return {f"{one.pool}/{one.name}": one for one in self._lab.site.engines.values()}

    def _engine(self, key: str, one: EngineHandle) -> Mapping[str, Any]:
        row = self._rows.get(key, {})
        return {
            "name": key,
            "zone": one.zone,
            "url": f"http://127.0.0.1:{one.port}",
            "buttons": self._faults.buttons(one.name),
            "fault": self._faults.active().get(one.name, ""),
            "health": row.get("health") or "",
            "verdict": row.get("verdict") or "",
            "reason": row.get("reason") or "",
            "floor": bool(row.get("floor")),
            "in_flight": row.get("in_flight"),
            "slots": one.slots,
        }

    def _places(self, lab: str) -> Mapping[str, str]:
        """Texts of the steps. The guide proposes the second engine until one hangs."""
        engines = self._engines()
        key = self._progress.engine or list(engines)[min(1, len(engines) - 1)]
        return {
            "engine": key,
            "url": f"http://127.0.0.1:{engines[key].port}",
            "admin": self._lab.site.control_plane,
            "lab": lab,
        }

    async def _watch(self) -> None:
        """Observe the lab periodically, also while the page is closed."""
        admin = self._lab.site.control_plane
        while admin:
            explanation: Mapping[str, str] = {}
            try:
                async with asyncio.timeout(_ANSWER_LIMIT_S):
                    rows = (await self._fetch("/v1/engines"))["engines"]
                    if self._progress.asks_why:
                        explanation = await self._explanation(self._progress.engine)
                self._rows = {f"{row['pool']}/{row['engine']}": row for row in rows}
                self._contact = True
            except (aiohttp.ClientError, TimeoutError):
                self._rows, self._contact = {}, False
            self._progress = advanced(self._progress, self._observation(explanation))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _explanation(self, engine: str) -> Mapping[str, str]:
        """The control plane's answer about the engine, in one sentence."""
        said = await self._fetch("/v1/why", name=engine)
        rules = ", ".join(str(rule["field"]) for rule in said["ruled_by"])
        text = " ".join([said["now"], *said["because"][:1]])
        return {engine: f"{text} Ruled by {rules}." if rules else text}

    async def _fetch(self, path: str, **query: str) -> Any:
        async with self._lab.site.session.get(f"{self._lab.site.control_plane}{path}", params=query) as answer:
            answer.raise_for_status()
            return await answer.json()

    def _observation(self, explanation: Mapping[str, str]) -> Observation:
        active = self._faults.active()
        return Observation(
            engines=[
                ObservedEngine(
                    name=key,
                    health=str(self._rows.get(key, {}).get("health") or ""),
                    verdict=str(self._rows.get(key, {}).get("verdict") or ""),
                    reason=str(self._rows.get(key, {}).get("reason") or ""),
                    since_s=float(self._rows.get(key, {}).get("health_age_s") or 0.0),
                    fault=active.get(one.name, ""),
                )
                for key, one in self._engines().items()
            ],
            answers=self._answers.figures(time.monotonic()),
            explanation=explanation,
        )


async def _body(request: web.Request, shape: TypeAdapter[_T]) -> _T:
    """The request's JSON; 400 names the first invalid field, 415 refuses what a form could send."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send Content-Type: application/json")
    try:
        return shape.validate_json(await request.read())
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise web.HTTPBadRequest(text=f"{where}: {first['msg']}") from problem


def _refusal(why: str) -> web.Response:
    return web.json_response({"error": why}, status=400)
