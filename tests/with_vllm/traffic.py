"""One streaming request as a client sees it."""

import asyncio
import json
import time

import aiohttp


class Stream:
    """A streaming completion that runs in the background.

    ``seconds`` and ``first_token_s`` count from the request. ``tokens``: generated tokens by the last event.
    ``tokens_seen``: events with a token so far.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        model: str,
        max_tokens: int,
        prompt: str = "Count the stars.",
    ) -> None:
        self.max_tokens = max_tokens
        self.status = 0
        self.tokens = 0
        self.tokens_seen = 0
        self.first_token_s = 0.0
        self.seconds = 0.0
        self.trouble = ""
        self._done = False
        self._session = session
        self._body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self._began_s = time.monotonic()
        self._task = asyncio.create_task(self._run(f"{url}/v1/completions"))

    @property
    def whole(self) -> bool:
        """Whether it came to its proper end with every token it asked for."""
        return self._done and not self.trouble and self.tokens == self.max_tokens

    async def ended(self) -> "Stream":
        """Itself, when it is over one way or another."""
        await self._task
        return self

    async def leave(self) -> None:
        """Hang up, as a client does that has seen enough."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def __repr__(self) -> str:
        return (
            f"<{self.status}, {self.tokens_seen} events, {self.tokens} of {self.max_tokens} tokens, "
            f"{self.seconds:.2f} s{', ' + self.trouble if self.trouble else ''}>"
        )

    async def _run(self, url: str) -> None:
        try:
            async with self._session.post(url, json=self._body) as answer:
                self.status = answer.status
                if answer.status != 200:
                    self.trouble = (await answer.text())[:200].strip()
                else:
                    await self._read(answer)
        except aiohttp.ClientError as problem:
            self.trouble = str(problem) or type(problem).__name__
        finally:
            self.seconds = time.monotonic() - self._began_s

    async def _read(self, answer: aiohttp.ClientResponse) -> None:
        # Only the end of a stream is parsed: 64 streams share two cores with two engines.
        async for line in answer.content:
            if line.startswith(b"data: [DONE]"):
                self._done = True
            elif line.startswith(b'data: {"error"'):
                self.trouble = line.decode().strip()
            elif b'"choices":[]' in line:
                self.tokens = json.loads(line.removeprefix(b"data: "))["usage"]["completion_tokens"]
            elif line.startswith(b"data: "):
                if not self.tokens_seen:
                    self.first_token_s = time.monotonic() - self._began_s
                self.tokens_seen += 1
