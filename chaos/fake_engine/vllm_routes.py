"""HTTP routes of a fake engine, modelled on vLLM's API server.

As in vLLM, stream headers are sent before the first token, so a ``200`` says nothing about the GPU. With the
first-token gate they wait for the first token, and an earlier error becomes a plain HTTP error.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from prometheus_client import CONTENT_TYPE_LATEST

from chaos.fake_engine.active_call import ActiveCall
from chaos.fake_engine.call_log import LOAD_ID, CallOutcome
from chaos.fake_engine.engine_config import EngineConfig
from chaos.fake_engine.engine_faults import EngineFault, EngineHang, HealthAnswer, RefuseCall
from chaos.fake_engine.engine_port import reset_connection
from chaos.fake_engine.openai_api import (
    DONE,
    Generation,
    RequestError,
    completion_object,
    error_object,
    parse_generation,
    pooling_object,
    role_event,
    sse_event,
    stream_event,
    usage_event,
)
from chaos.fake_engine.routing_sidecar import (
    KV_PATH,
    PREFILLED_BY_HEADER,
    PREFILLER_HEADER,
    RemoteKv,
    RoutingSidecar,
)

VERSION = "0.32.0+switchgear.fake"
# Longer than any reasonable health check timeout.
SLOW_HEALTH_S = 5.0
POOLING_PATHS = (
    "/v1/embeddings",
    "/pooling",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
)
_MAX_BODY_BYTES = 16 * 1024 * 1024


class EngineBackend(Protocol):
    """The engine behind the routes."""

    config: EngineConfig
    adapters: tuple[str, ...]
    adapter_requests: int

    @property
    def health(self) -> HealthAnswer:
        """Answer of /health."""

    @property
    def calls_in_flight(self) -> int:
        """Calls open in the API process."""

    @property
    def calls_before_first_token(self) -> int:
        """Calls waiting for their first token."""

    @property
    def long_calls_before_first_token(self) -> int:
        """Those of them with a long body."""

    def metrics_text(self) -> bytes:
        """The /metrics page."""

    async def set_fault(self, fault: EngineFault) -> None:
        """Set the fault in force."""

    async def heal(self) -> None:
        """Clear it."""

    def accept(
        self,
        generation: Generation,
        *,
        request_id: str,
        attempt: int,
        path: str,
        connection: RequestHandler,
        rank: int | None = None,
        prefilled: bool = False,
    ) -> ActiveCall | RefuseCall:
        """Open a call, or refuse it."""

    def receive_kv(self, call: ActiveCall) -> None:
        """Let a prefilled call begin."""

    async def send_kv(self, call_id: int) -> bool:
        """Send the KV cache of an ended call, if it is there."""

    def close(self, call: ActiveCall, outcome: CallOutcome, reason: str) -> None:
        """End a call."""


def application(engine: EngineBackend) -> web.Application:
    """The routes of one engine; every answer carries ``x-fake-engine: <name>``."""
    routes = _Routes(engine)
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[routes.authenticate])
    app.add_routes(
        [
            web.post("/v1/completions", routes.completions),
            web.post("/v1/chat/completions", routes.chat_completions),
            *(web.post(path, routes.pool) for path in POOLING_PATHS),
            web.get("/v1/models", routes.models),
            *(
                ()
                if engine.config.no_runtime_lora
                else (
                    web.post("/v1/load_lora_adapter", routes.load_adapter),
                    web.post("/v1/unload_lora_adapter", routes.unload_adapter),
                )
            ),
            web.get("/health", routes.health),
            web.get("/ping", routes.health),
            web.post("/ping", routes.health),
            web.get("/version", routes.version),
            web.get("/load", routes.load),
            web.get("/metrics", routes.metrics),
            web.post("/pause", routes.pause),
            web.post("/resume", routes.resume),
            web.get("/is_paused", routes.is_paused),
            web.get(KV_PATH + "{call_id}", routes.send_kv),
        ]
    )
    if engine.config.first_token_gate:
        app.router.add_get("/switchgear/in_flight", routes.in_flight)
    app.on_response_prepare.append(routes.sign)
    app.on_cleanup.append(routes.sidecar.close)
    return app


class _Routes:
    def __init__(self, engine: EngineBackend) -> None:
        self._engine = engine
        self.sidecar = RoutingSidecar()
        self._started_at = int(time.time())
        self._paused = False

    async def sign(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers["x-fake-engine"] = self._engine.config.name
        if self._prefills_elsewhere(request):
            response.headers[PREFILLED_BY_HEADER] = request.headers[PREFILLER_HEADER]

    def _prefills_elsewhere(self, request: web.Request) -> bool:
        return self._engine.config.routing_sidecar and PREFILLER_HEADER in request.headers

    @web.middleware
    async def authenticate(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse /v1 without the key, as vLLM does; /health, /metrics and /load need none."""
        key = self._engine.config.api_key
        if key and request.path.startswith("/v1") and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    async def pause(self, _request: web.Request) -> web.Response:
        """As vLLM's mode=keep: no token until it resumes."""
        self._paused = True
        await self._engine.set_fault(EngineHang())
        return web.json_response({"status": "paused"})

    async def resume(self, _request: web.Request) -> web.Response:
        self._paused = False
        await self._engine.heal()
        return web.json_response({"status": "resumed"})

    async def is_paused(self, _request: web.Request) -> web.Response:
        return web.json_response({"is_paused": self._paused})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def pool(self, request: web.Request) -> web.StreamResponse:
        """One result for one short input: a step of the scheduler, and no token."""
        config = self._engine.config
        if request.path.startswith("/v1/audio/"):
            form = await request.post()
            sound = form.get("file")
            if isinstance(sound, web.FileField):
                sound.file.close()  # its content makes no difference
            body = {"model": str(form.get("model", "")), "prompt": "sound"}
        else:
            sent = await request.json()
            text = next((sent[key] for key in ("input", "text_1", "query") if key in sent), "")
            body = {"model": sent.get("model"), "prompt": str(text)}
        if body["model"] != config.model:
            return _error(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
        generation = parse_generation(
            json.dumps({**body, "max_tokens": 1}).encode(),
            chat=False,
            model=config.model,
            max_model_len=config.max_model_len,
        )
        call = self._engine.accept(
            generation,
            request_id=request.headers.get(LOAD_ID, ""),
            attempt=0,
            path=request.path,
            connection=request.protocol,
        )
        if isinstance(call, RefuseCall):
            return _error(call.status, call.message, call.error_type, retry_after_s=call.retry_after_s)
        try:
            await call.wait_for_tokens(0)
        except asyncio.CancelledError:
            self._engine.close(call, CallOutcome.ABORTED, "client left")
            raise
        if call.plan.error_status is not None:
            return self._failed(call, call.plan.error_status)
        self._engine.close(call, CallOutcome.FINISHED, "")
        return web.json_response(pooling_object(request.path, config.model))

    async def models(self, _request: web.Request) -> web.Response:
        config = self._engine.config
        told = {"object": "model", "created": self._started_at, "owned_by": "switchgear-fake-engine"}
        model = {
            **told,
            "id": config.model,
            "root": config.model,
            "parent": None,
            "max_model_len": config.max_model_len,
        }
        adapters = [
            {**told, "id": name, "root": f"/adapters/{name}", "parent": config.model, "max_model_len": None}
            for name in self._engine.adapters
        ]
        return web.json_response({"object": "list", "data": [model, *adapters]})

    async def load_adapter(self, request: web.Request) -> web.Response:
        body, config = await request.json(), self._engine.config
        self._engine.adapter_requests += 1
        name, path = str(body.get("lora_name", "")), str(body.get("lora_path", ""))
        if not name or not path:
            return _error(400, "Both 'lora_name' and 'lora_path' must be provided.", "InvalidUserInput")
        if name in self._engine.adapters:
            message = f"The lora adapter '{name}' has already been loaded."
            return _error(400, message, "InvalidUserInput")
        if config.lora_paths and path not in config.lora_paths.split(","):
            message = f"Loading lora {name} failed: No adapter found for {path}"
            return _error(404, message, "NotFoundError")
        await asyncio.sleep(config.lora_load_s)
        if name not in self._engine.adapters:
            self._engine.adapters += (name,)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload_adapter(self, request: web.Request) -> web.Response:
        name = str((await request.json()).get("lora_name", ""))
        if name not in self._engine.adapters:
            return _error(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
        self._engine.adapters = tuple(one for one in self._engine.adapters if one != name)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def health(self, _request: web.Request) -> web.Response:
        match self._engine.health:
            case "ok":
                return web.Response()
            case "fail":
                return web.Response(status=503)
            case "slow":
                await asyncio.sleep(SLOW_HEALTH_S)
                return web.Response()

    async def send_kv(self, request: web.Request) -> web.Response:
        """The KV cache of a call for another engine, without its bytes."""
        name = request.match_info["call_id"].rpartition("-")[2]
        if not name.isdecimal() or not await self._engine.send_kv(int(name)):
            return _error(404, "no such KV cache", "NotFoundError")
        return web.Response()

    async def version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def load(self, _request: web.Request) -> web.Response:
        return web.json_response({"server_load": self._engine.calls_in_flight})

    async def in_flight(self, _request: web.Request) -> web.Response:
        waiting = self._engine.calls_before_first_token
        counts = {
            "in_flight": self._engine.calls_in_flight,
            "waiting_for_first_token": waiting,
            "waiting_long": self._engine.long_calls_before_first_token,
        }
        return web.json_response(counts)

    async def metrics(self, _request: web.Request) -> web.Response:
        body = self._engine.metrics_text()
        return web.Response(body=body, headers={"content-type": CONTENT_TYPE_LATEST})

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        config = self._engine.config
        try:
            generation = parse_generation(
                await request.read(),
                chat=chat,
                model=config.model,
                max_model_len=config.max_model_len,
                adapters=self._engine.adapters,
            )
        except RequestError as refused:
            return _error(refused.status, str(refused), refused.error_type)
        named, ranks = request.headers.get("X-data-parallel-rank", ""), config.data_parallel_size
        if named.isdecimal() and int(named) >= ranks:
            message = f"data_parallel_rank {named} is out of range [0, {ranks})."
            return _error(400, message, "BadRequestError")
        kv: RemoteKv | None = None
        if self._prefills_elsewhere(request):
            prefilled = await self.sidecar.prefill(request, await request.read())
            if isinstance(prefilled, web.Response):
                return prefilled
            kv = prefilled
        attempt = request.headers.get("x-envoy-attempt-count", "")
        call = self._engine.accept(
            generation,
            request_id=request.headers.get(LOAD_ID, request.headers.get("x-request-id", "")),
            attempt=int(attempt) if attempt.isdecimal() else 0,
            path=request.path,
            connection=request.protocol,
            rank=int(named) if named.isdecimal() else None,
            prefilled=kv is not None,
        )
        if isinstance(call, RefuseCall):
            return _error(call.status, call.message, call.error_type, retry_after_s=call.retry_after_s)
        try:
            if kv is not None:
                if not await self.sidecar.fetch(kv):
                    # As with vLLM's kv_load_failure_policy "fail".
                    self._engine.close(call, CallOutcome.FAILED, "KV cache lost")
                    return _error(500, "the KV cache could not be loaded", "InternalServerError")
                self._engine.receive_kv(call)
            return await (self._stream if generation.streaming else self._whole)(request, call)
        except (asyncio.CancelledError, ConnectionError):
            # The client left: free its slot.
            self._engine.close(call, CallOutcome.ABORTED, "client left")
            raise

    async def _whole(self, request: web.Request, call: ActiveCall) -> web.StreamResponse:
        generation = call.generation
        await call.wait_for_tokens(generation.max_tokens)
        if call.plan.reset_after is not None:
            raise self._reset(request, call)
        if call.plan.error_status is not None:
            return self._failed(call, call.plan.error_status)
        answer_id, created = _answer_id(call), int(time.time())
        response = web.json_response(completion_object(generation, answer_id=answer_id, created=created))
        await response.prepare(request)
        await response.write_eof()
        call.tokens_sent = generation.max_tokens
        self._engine.close(call, CallOutcome.FINISHED, "")
        return response

    async def _stream(self, request: web.Request, call: ActiveCall) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        gate = self._engine.config.first_token_gate
        if not gate:
            await response.prepare(request)
        if call.plan.error_status is not None:
            await call.wait_for_tokens(call.generation.max_tokens)
            refusal = self._failed(call, call.plan.error_status)
            if gate:
                return refusal
            await response.write(sse_event(_failure_object(call)) + DONE)
            return response
        await self._send_tokens(request, response, call)
        if call.plan.reset_after is not None:
            raise self._reset(request, call)
        await response.write(_ending(call.generation, _answer_id(call)))
        await response.write_eof()
        self._engine.close(call, CallOutcome.FINISHED, "")
        return response

    async def _send_tokens(self, request: web.Request, response: web.StreamResponse, call: ActiveCall) -> None:
        """Write tokens as they are generated, until the call ends."""
        generation, answer_id, created = call.generation, _answer_id(call), int(time.time())
        while call.tokens_sent < call.job_tokens:
            await call.wait_for_tokens(call.tokens_sent)
            chunk = stream_event(
                generation,
                answer_id=answer_id,
                created=created,
                first=call.tokens_sent + 1,
                last=call.tokens,
            )
            if call.tokens_sent == 0 and generation.chat:
                chunk = role_event(generation, answer_id=answer_id, created=created) + chunk
            if not response.prepared:
                await response.prepare(request)
            call.tokens_sent = call.tokens
            await response.write(chunk)

    def _failed(self, call: ActiveCall, status: int) -> web.Response:
        self._engine.close(call, CallOutcome.FAILED, f"error {status} after the work")
        return web.json_response(_failure_object(call), status=status)

    def _reset(self, request: web.Request, call: ActiveCall) -> ConnectionResetError:
        self._engine.close(call, CallOutcome.FAILED, "reset")
        if isinstance(request.transport, asyncio.Transport):
            reset_connection(request.transport)
        return ConnectionResetError("the connection was reset on command")


def _answer_id(call: ActiveCall) -> str:
    return f"{'chatcmpl' if call.generation.chat else 'cmpl'}-{call.call_id}"


def _ending(generation: Generation, answer_id: str) -> bytes:
    if not generation.include_usage:
        return DONE
    return usage_event(generation, answer_id=answer_id, created=int(time.time())) + DONE


def _failure_object(call: ActiveCall) -> dict[str, object]:
    return error_object(call.plan.error_status or 500, call.plan.error_message, "InternalServerError")


def _error(status: int, message: str, error_type: str, *, retry_after_s: int | None = None) -> web.Response:
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return web.json_response(error_object(status, message, error_type), status=status, headers=headers)
