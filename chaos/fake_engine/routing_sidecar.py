"""The routing side-car in front of a decode engine: asks the prefill engine that a header names.

It does what llm-d's side-car does with the NIXL connector, as far as a proxy can tell: it sends the prompt to the
prefill engine for one token, gives ``kv_transfer_params`` of the answer to its own engine, passes on an error of
the prefill engine, and answers 502 if it cannot be reached. It tries no other. The fake engine runs it on its own
port.

Source: llm-d-router, pkg/sidecar/proxy, chat_completions.go and connector_nixlv2.go.
"""

import json
from typing import Final

import aiohttp
from aiohttp import web

PREFILLER_HEADER: Final = "x-prefiller-host-port"
PREFILLED_BY_HEADER: Final = "x-fake-prefiller"
"""On answers: the prefill engine that was asked. Only the fake has it."""

_TRANSFER: Final = "kv_transfer_params"


class RoutingSidecar:
    """The side-car of one engine; ``close`` ends its connections."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def prefill(self, request: web.Request, body: bytes) -> web.Response | None:
        """Let the prefill engine compute the prompt; the answer to the caller if it fails, else None."""
        named = request.headers[PREFILLER_HEADER]
        asked = {**json.loads(body), "stream": False, "max_tokens": 1, _TRANSFER: {"do_remote_decode": True}}
        for name in ("stream_options", "max_completion_tokens"):
            asked.pop(name, None)
        if self._session is None:
            # An engine that hangs holds the request, as it does behind the real side-car.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
            )
        try:
            async with self._session.post(f"http://{named}{request.path}", json=asked) as answer:
                text = await answer.read()
                if answer.status == 200 and _TRANSFER in json.loads(text):
                    return None
                status = answer.status if answer.status != 200 else 502
        except (TimeoutError, aiohttp.ClientError) as lost:
            status, text = 502, json.dumps({"error": {"message": f"prefill at {named}: {lost}"}}).encode()
        return web.Response(status=status, body=text, content_type="application/json")

    async def close(self, _app: web.Application) -> None:
        """Close the connections to prefill engines."""
        if self._session is not None:
            await self._session.close()
            self._session = None
