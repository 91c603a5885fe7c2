"""Probe one engine over HTTP with bounded time and bytes, without exceptions.

Every network error becomes a ``ProbeFailure``. Faults of the prober itself (unresolved name, no sockets, stalled
event loop, own expired certificate) are kept apart and never count as faults of the engine.
"""

import asyncio
import errno
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from engine.adapter_list import LOAD_ADAPTER_PATH
from engine.api_key_file import ApiKey
from engine.canary_request import CanaryBody, addresses_ranks, canary_body, missing_result
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure, ProbeFailureReason
from engine.probe_settings import ProbeSettings
from engine.tls.engine_trust import ClientTls, EngineIdentity, TrustError, tls_failure
from engine.vllm_metrics import MetricsError, VllmCounters, vllm_counters

# Metrics of a busy vLLM: about 0.1 MiB; a canary: below 1 KiB.
METRICS_LIMIT_BYTES: Final = 4 * 1024 * 1024
ANSWER_LIMIT_BYTES: Final = 256 * 1024
LOAD_LIMIT_BYTES: Final = 4096
# A saturated engine needed 20 ms for its counters. With 0.5 s, API processes short of CPU counted as dead in a
# test with a tenth of the cores.
METRICS_TIMEOUT_S: Final = 1.0
_DETAIL_CHARS: Final = 200
_HEALTH_PATH: Final = "/health"
# vLLM sends the request to this data-parallel rank, by its place.
_RANK_HEADER: Final = "X-data-parallel-rank"
# Retry interval for an engine without a request count.
LOAD_RETRY_READINGS: Final = 120

# vLLM's answers about a pause, and what each means. They come from the engine core: a hung one gives none.
_PAUSES: Final = (("/is_paused", "is_paused", "paused"), ("/is_sleeping", "is_sleeping", "asleep"))
_PAUSE_TIMEOUT_S: Final = 0.25
_PAUSE_INTERVAL_S: Final = 0.5
_NO_PAUSE_INTERVAL_S: Final = 60.0

_CUT: Final = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED})
_NO_WAY: Final = frozenset({errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.EHOSTDOWN})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTarget:
    """One engine to probe; ``name`` is the name to verify, None for plain HTTP."""

    address: str
    port: int
    model: str
    probe: ProbeSettings
    name: EngineIdentity | None = None

    def url(self, path: str) -> URL:
        """URL of a path."""
        scheme = "http" if self.name is None else "https"
        return URL.build(scheme=scheme, host=self.address, port=self.port, path=path)

    @property
    def server_name(self) -> str | None:
        """SNI; None for plain HTTP."""
        return None if self.name is None else self.name.server_name or self.address.rstrip(".")


MAX_MISCOUNT: Final = 10_000
"""A real engine does not miscount by more; a count below minus this is ignored."""


class TooLargeError(Exception):
    """The answer exceeds the size limit."""


def http_session() -> aiohttp.ClientSession:
    """A session without cookies, proxy or decompression, shared by all engines."""
    traced = aiohttp.TraceConfig()
    traced.on_connection_reuseconn.append(_reused)
    traced.on_connection_create_start.append(_new)
    return aiohttp.ClientSession(
        trace_configs=[traced],
        connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=10),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # no decompression bombs
        headers={"User-Agent": "switchgear-probe", "Accept-Encoding": "identity"},
    )


@dataclass(slots=True)
class _Connection:
    """Whether the connection of an exchange had carried an answer before."""

    reused: bool = False


async def _reused(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    if isinstance(context.trace_request_ctx, _Connection):
        context.trace_request_ctx.reused = True


async def _new(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    if isinstance(context.trace_request_ctx, _Connection):
        context.trace_request_ctx.reused = False


class EngineHttp:
    """Client of one engine on a shared session. ``late_since(t)``: whether our event loop stalled since t.

    ``means`` returns the TLS context for a target with a name; open connections continue when it changes. ``wall``
    is the clock for certificates. ``api_key`` returns the engine's key, empty for none.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        target: EngineTarget,
        clock: Callable[[], float],
        late_since: Callable[[float], bool],
        *,
        means: Callable[[], ClientTls] | None = None,
        wall: Callable[[], float] = time.time,
        api_key: ApiKey = lambda: "",
    ) -> None:
        self._http = http
        self._target = target
        self._clock = clock
        self._late_since = late_since
        self._means = means
        self._wall = wall
        self._api_key = api_key
        self._pause_from_s = 0.0
        self._looks_without_count = 0
        self._count_path = ""
        self._unstarted: int | None = None
        self._long_prompts: int | None = None
        self._request_count = RequestCount()
        self._looked_at_s = clock()

    @property
    def count_path(self) -> str:
        """Path of the engine's request count; empty if unknown."""
        return self._count_path

    async def read_metrics(self, *, suspect: bool = False, stalled: bool = False) -> MetricsReading:
        """Read counters and request count, within the metrics timeout.

        ``suspect`` also reads /health, ``stalled`` whether the engine is paused or asleep.
        """
        timeout_s = min(METRICS_TIMEOUT_S, self._target.probe.timeout_s)
        text, errored, pause = await asyncio.gather(
            self._metrics(timeout_s),
            self._errored(timeout_s) if suspect else _no(),
            self._pause() if stalled and self._clock() >= self._pause_from_s else _unknown(),
        )
        if not isinstance(text, ProbeFailure):
            self._request_count.started(text.started_at_s)
        # After the counters: the count must include each request of the running step.
        silent = isinstance(text, ProbeFailure) and not text.answered
        in_flight = None if silent else await self.count()
        # Several API processes report no start time. Another may hold a prompt that this count misses.
        partial = not isinstance(text, ProbeFailure) and text.started_at_s is None
        known = in_flight is not None and not partial
        late = self._late_since(self._looked_at_s)
        self._looked_at_s = self._clock()
        return MetricsReading(
            at_s=self._looked_at_s,
            counters=text,
            in_flight=in_flight,
            unstarted=self._unstarted if known else None,
            long_prompts=self._long_prompts if known else None,
            partial=partial,
            late=late,
            errored=errored,
            pause=pause,
        )

    async def count(self) -> int | None:
        """The engine's count of requests in flight; None if unavailable."""
        if self._looks_without_count:
            self._looks_without_count = (self._looks_without_count + 1) % LOAD_RETRY_READINGS
            return None
        timeout_s = min(METRICS_TIMEOUT_S, self._target.probe.timeout_s)
        for path in (self._count_path,) if self._count_path else self._target.probe.count_paths:
            text = await self._exchange(path, timeout_s, LOAD_LIMIT_BYTES)
            if isinstance(text, ProbeFailure):
                if not text.answered:
                    return None
            elif (counted := self._request_count.of(answer := _json(text))) is not None:
                self._count_path = path
                self._unstarted = _whole(answer.get("waiting_for_first_token"))
                self._long_prompts = _whole(answer.get("waiting_long"))
                return counted
        self._count_path = ""
        self._looks_without_count = 1
        return None

    def name_model(self, model: str) -> None:
        """Use this model in canaries."""
        self._target = replace(self._target, model=model)

    async def value(self, path: str) -> Any:
        """JSON value at ``path``, None if unreadable; or the failure."""
        text = await self._exchange(path, METRICS_TIMEOUT_S, ANSWER_LIMIT_BYTES)
        return text if isinstance(text, ProbeFailure) else _json(text)

    async def load_adapter(self, name: str, path: str, timeout_s: float) -> ProbeFailure | None:
        """Ask the engine to load a LoRA adapter from ``path`` on its machine; None if it answers that it did."""
        body: CanaryBody = {"lora_name": name, "lora_path": path}
        answer = await self._exchange(LOAD_ADAPTER_PATH, timeout_s, ANSWER_LIMIT_BYTES, body)
        return answer if isinstance(answer, ProbeFailure) else None

    async def send_canary(
        self, prompt: str, timeout_s: float | None = None, *, rank: int | None = None
    ) -> CanaryReading:
        """Send a canary, within the probe timeout or the given one, to one data-parallel rank if given."""
        target, sent_at_s = self._target, self._clock()
        path = target.probe.path
        body = canary_body(path, target.model, prompt)
        allowed_s = target.probe.timeout_s if timeout_s is None else timeout_s
        headers = {_RANK_HEADER: str(rank)} if rank is not None and addresses_ranks(path) else {}
        answer = await self._exchange(path, allowed_s, ANSWER_LIMIT_BYTES, body, headers)
        failure = answer if isinstance(answer, ProbeFailure) else _without_token(path, answer)
        return CanaryReading(sent_at_s=sent_at_s, at_s=self._clock(), failure=failure)

    async def wait_disconnected(self) -> None:
        """Return when the engine closes an idle connection, which detects a crash at once."""
        target = self._target
        try:
            means = self._secured()
            reader, writer = await asyncio.open_connection(
                target.address,
                target.port,
                limit=1024,
                ssl=None if means is None else means.context,
                server_hostname=target.server_name,
            )
        except (OSError, TrustError, ValueError) as error:
            _let_go(error)
            return  # the next probe reports the cause
        try:
            while await reader.read(1024):
                pass
        except OSError as error:
            _let_go(error)
            return
        finally:
            # A TLS close would wait 30 s for a hung engine.
            writer.transport.abort()
            try:
                await writer.wait_closed()
            except OSError as error:
                _let_go(error)

    async def _metrics(self, timeout_s: float) -> VllmCounters | ProbeFailure:
        text = await self._exchange(self._target.probe.metrics_path, timeout_s, METRICS_LIMIT_BYTES)
        if isinstance(text, ProbeFailure):
            return text
        try:
            return vllm_counters(text, latency=self._target.probe.latency)
        except MetricsError as error:
            return ProbeFailure(trouble=ProbeFailureReason.GARBAGE, detail=str(error))

    async def _errored(self, timeout_s: float) -> bool:
        """Whether /health reports an error; vLLM answers 503 after its core died."""
        text = await self._exchange(_HEALTH_PATH, timeout_s, LOAD_LIMIT_BYTES)
        return isinstance(text, ProbeFailure) and text.status >= 500

    async def _pause(self) -> str | None:
        """Why the engine stands still by order; empty if it does not, None if unknown."""
        texts = await asyncio.gather(
            *(self._exchange(path, _PAUSE_TIMEOUT_S, LOAD_LIMIT_BYTES) for path, _, _ in _PAUSES)
        )
        absent = all(isinstance(one, ProbeFailure) and one.status == 404 for one in texts)
        self._pause_from_s = self._clock() + (_NO_PAUSE_INTERVAL_S if absent else _PAUSE_INTERVAL_S)
        answers = [None if isinstance(one, ProbeFailure) else _json(one) for one in texts]
        known = [
            (state, answer[key])
            for (_, key, state), answer in zip(_PAUSES, answers, strict=True)
            if isinstance(answer, dict) and isinstance(answer.get(key), bool)
        ]
        if not known:
            return None
        return next((state for state, paused in known if paused), "")

    async def _exchange(
        self,
        path: str,
        timeout_s: float,
        limit_bytes: int,
        body: CanaryBody | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> bytes | ProbeFailure:
        """Body of a 200 answer, or the failure; with ``body`` a POST."""
        started_at_s = self._clock()
        way = _Connection()
        key = self._api_key()
        try:
            means = self._secured()
            async with self._http.request(
                "GET" if body is None else "POST",
                self._target.url(path),
                json=body if isinstance(body, dict) else None,
                data=body if isinstance(body, aiohttp.FormData) else None,
                headers={**headers, "Authorization": f"Bearer {key}"} if key else headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                ssl=True if means is None else means.context,
                server_hostname=self._target.server_name,
                trace_request_ctx=way,
            ) as response:
                received = await _bounded(response, limit_bytes)
                if response.status == 200:
                    return received
                # An engine may quote the key that it refuses.
                said = received.replace(key.encode(), b"[key]") if key else received
                return ProbeFailure(
                    trouble=ProbeFailureReason.STATUS,
                    status=response.status,
                    detail=f"HTTP {response.status} from {path}: {_said(said)}",
                )
        except TimeoutError:
            if self._late_since(started_at_s):
                return ProbeFailure(trouble=ProbeFailureReason.OURS, detail="the prober itself was late")
            return ProbeFailure(
                trouble=ProbeFailureReason.SILENT, detail=f"no answer from {path} within {timeout_s:g} s"
            )
        except TooLargeError as error:
            return ProbeFailure(trouble=ProbeFailureReason.GARBAGE, detail=f"{path}: {error}")
        except (TrustError, aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            failure = self._ended(path, error, way)
            _let_go(error)
            return failure

    def _ended(self, path: str, error: Exception, way: _Connection) -> ProbeFailure:
        failure = self._failure(path, error)
        if self._target.name is None or failure.trouble is not ProbeFailureReason.CUT or way.reused:
            return failure
        # Some servers close without a TLS alert. A dead process refuses the next connection.
        doubt = "closes new connections without an answer; it may refuse our certificate"
        return self._untrusted(f"{self._target.address}:{self._target.port}", doubt)

    def _failure(self, path: str, error: Exception) -> ProbeFailure:
        place = f"{self._target.address}:{self._target.port}"
        if isinstance(error, TrustError):
            return ProbeFailure(trouble=ProbeFailureReason.OURS, detail=str(error))
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return ProbeFailure(trouble=ProbeFailureReason.OURS, detail=f"cannot resolve {self._target.address}")
        doubt = "" if self._target.name is None else tls_failure(error)
        if doubt:
            return self._untrusted(place, doubt)
        if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
            return ProbeFailure(
                trouble=ProbeFailureReason.CUT, detail=f"{place} closed the connection during {path}"
            )
        if isinstance(error, OSError):
            return _refused(place, path, error)
        return ProbeFailure(
            trouble=ProbeFailureReason.GARBAGE, detail=f"{path}: not an HTTP answer: {type(error).__name__}"
        )

    def _secured(self) -> ClientTls | None:
        """TLS context; None for plain HTTP. ``TrustError`` without certificates."""
        if self._target.name is None:
            return None
        if self._means is None:
            raise TrustError("no certificates for TLS")
        return self._means()

    def _untrusted(self, place: str, doubt: str) -> ProbeFailure:
        """TLS failure: ours if our certificates have expired, else the engine's."""
        try:
            means = self._secured()
        except TrustError as error:
            return ProbeFailure(trouble=ProbeFailureReason.OURS, detail=str(error))
        if means is not None and self._wall() >= means.ends_unix_s:
            return ProbeFailure(
                trouble=ProbeFailureReason.OURS,
                detail=f"{place}: {doubt}; our own certificates for it have expired",
            )
        return ProbeFailure(trouble=ProbeFailureReason.UNTRUSTED, detail=f"{place}: {doubt}")


def _let_go(error: BaseException) -> None:
    """Remove tracebacks, which form reference cycles.

    Each cycle keeps a hundred objects until the next collection, minutes later, and engines that are down are
    probed several times a second.
    """
    one: BaseException | None = error
    while one is not None and one.__traceback__ is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__


async def _no() -> bool:
    return False


async def _unknown() -> str | None:
    return None


class RequestCount:
    """Requests in flight by the answers of one engine: the first-token gate's (``in_flight``), or vLLM's
    (``server_load``).

    vLLM takes a request off twice whose client leaves just as its answer ends, so its count may fall below zero
    and stays too low until the process restarts. The lowest count seen is that error at least. Several API
    processes do not report their start, and have an error each: theirs is not corrected.
    """

    def __init__(self) -> None:
        self._started_at_s: float | None = None
        self._lowest = 0

    def started(self, at_s: float | None) -> None:
        """Forget what an earlier process counted; ``at_s``: when it started, None if unknown."""
        if at_s != self._started_at_s:
            self._started_at_s, self._lowest = at_s, 0

    def of(self, answer: Any) -> int | None:
        """The count in a JSON answer; None if it has none."""
        if not isinstance(answer, dict):
            return None
        load = answer.get("server_load")
        if self._started_at_s is None or not isinstance(load, int) or isinstance(load, bool):
            return _whole(answer.get("in_flight") if load is None else load)
        if load < -MAX_MISCOUNT:
            return None
        self._lowest = min(self._lowest, load)
        return load - self._lowest


def _whole(count: Any) -> int | None:
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def _refused(place: str, path: str, error: OSError) -> ProbeFailure:
    """Failure of an OS error, and whether it is ours."""
    if error.errno == errno.ECONNREFUSED:
        return ProbeFailure(trouble=ProbeFailureReason.REFUSED, detail=f"connection refused at {place}")
    if error.errno in _CUT:
        return ProbeFailure(trouble=ProbeFailureReason.CUT, detail=f"{place} reset the connection during {path}")
    if error.errno in _NO_WAY:
        return ProbeFailure(trouble=ProbeFailureReason.SILENT, detail=f"no route to {place}")
    return ProbeFailure(trouble=ProbeFailureReason.OURS, detail=f"cannot connect to {place}: {error}")


async def _bounded(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit_bytes:
            response.close()
            msg = f"more than {limit_bytes} bytes"
            raise TooLargeError(msg)
    return bytes(body)


def _json(text: bytes) -> Any:
    """JSON value or None; hostile input may nest too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _without_token(path: str, text: bytes) -> ProbeFailure | None:
    """Failure of a 200 answer; None if it holds the result that its path promises."""
    answer = _json(text)
    if not isinstance(answer, dict):
        return ProbeFailure(trouble=ProbeFailureReason.GARBAGE, detail=f"200 without a completion: {_said(text)}")
    error = answer.get("error")
    if error:
        status = error.get("code") if isinstance(error, dict) else None
        code = status if isinstance(status, int) and 400 <= status < 600 else 500
        return ProbeFailure(
            trouble=ProbeFailureReason.STATUS, status=code, detail=f"error {code} inside a 200: {_said(text)}"
        )
    missing = missing_result(path, answer)
    if not missing:
        return None
    return ProbeFailure(trouble=ProbeFailureReason.GARBAGE, detail=f"200 without a {missing}: {_said(text)}")


def _said(text: bytes) -> str:
    """Error message or body of the engine, short and printable."""
    value = _json(text[:ANSWER_LIMIT_BYTES])
    if isinstance(value, dict):
        error = value.get("error")
        message = error.get("message") if isinstance(error, dict) else value.get("message") or value.get("detail")
        if isinstance(message, str):
            return _printable(message)
    return _printable(text[: 4 * _DETAIL_CHARS].decode("utf-8", "replace"))


def _printable(text: str) -> str:
    words = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return words if len(words) <= _DETAIL_CHARS else words[:_DETAIL_CHARS] + "…"
