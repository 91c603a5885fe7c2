"""The routing side-car in front of a decode engine: asks the prefill engine that a header names.

It does what llm-d's side-car does with the NIXL connector, as far as a proxy can tell: it sends the prompt to the
prefill engine for one token, gives ``kv_transfer_params`` of the answer to its own engine, passes on an error of
the prefill engine, and answers 502 if it cannot be reached. It tries no other. The fake engine runs it on its own
port. Its own engine then fetches the KV cache (``fetch``), which the prefill engine keeps until then.

Source: llm-d-router, pkg/sidecar/proxy, chat_completions.go and connector_nixlv2.go.
"""

import json
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp import web

from chaos.fake_engine.call_log import LOAD_ID

PREFILLER_HEADER: Final = "x-prefiller-host-port"
PREFILLED_BY_HEADER: Final = "x-fake-prefiller"
"""On answers: the prefill engine that was asked. Only the fake has it."""

KV_PATH: Final = "/fake/kv/"
"""Where the fake engine sends the KV cache of a call; real engines have a port of their own for it."""

_TRANSFER: Final = "kv_transfer_params"
_SAME_REQUEST: Final = (LOAD_ID, "x-request-id")
"""Headers that the side-car passes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteKv:
    """Where the KV cache of a prompt is: the prefill engine, and the name of the call there."""

    engine: str
    call: str


class RoutingSidecar:
    """The side-car of one engine; ``close`` ends its connections."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def prefill(self, request: web.Request, body: bytes) -> RemoteKv | web.Response:
        """Let the prefill engine compute the prompt; the answer to the caller if it fails."""
        named = request.headers[PREFILLER_HEADER]
        asked = {**json.loads(body), "stream": False, "max_tokens": 1, _TRANSFER: {"do_remote_decode": True}}
        for name in ("stream_options", "max_completion_tokens"):
            asked.pop(name, None)
        headers = {name: request.headers[name] for name in _SAME_REQUEST if name in request.headers}
        try:
            async with self._calls().post(f"http://{named}{request.path}", json=asked, headers=headers) as answer:
                text = await answer.read()
                if answer.status == 200 and (found := json.loads(text).get(_TRANSFER)):
                    return RemoteKv(engine=named, call=str(found["remote_request_id"]))
                status = answer.status if answer.status != 200 else 502
        except (TimeoutError, aiohttp.ClientError) as lost:
            status, text = 502, json.dumps({"error": {"message": f"prefill at {named}: {lost}"}}).encode()
        return web.Response(status=status, body=text, content_type="application/json")

    async def fetch(self, kv: RemoteKv) -> bool:
        """Fetch the KV cache, however long that takes; False if it is lost."""
        try:
            async with self._calls().get(f"http://{kv.engine}{KV_PATH}{kv.call}") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def close(self, _app: web.Application) -> None:
        """Close the connections to prefill engines."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _calls(self) -> aiohttp.ClientSession:
        if self._session is None:
            # An engine that hangs holds the request, as it does behind the real side-car.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
            )
        return self._session
