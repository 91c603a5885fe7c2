"""Structured logs: event name and fields; one line per state change, none per cycle.

Lines go to stderr as text or JSON. Messages that libraries send to ``logging`` (grpc, aiohttp, asyncio) use the
same format, from warnings upwards.
"""

import logging
import sys
import time
from typing import Final, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_OWN_LINES: Final = frozenset({"exception", "stack", "timestamp"})


SELDOM_S: Final = 10.0
_NO_DESCRIPTORS: Final = "socket.accept() out of system resource"


class _Seldom(logging.Filter):
    """Rate-limits asyncio's error about missing descriptors, which repeats hundreds of times per second."""

    _next_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith(_NO_DESCRIPTORS):
            return True
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + SELDOM_S
        return True


_SELDOM: Final = _Seldom()


class _Lossy:
    """Text stream that drops failed writes: a full log disk must not stop the server."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            return  # no place left to report


def configure(log_format: Literal["text", "json"], log_level: str) -> None:
    """Configure structlog and ``logging`` for this process; events below ``log_level`` are not rendered."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendered: list[Processor]
    if log_format == "json":
        # Without local variables: they include keys, tokens, and whole fleets that take seconds to render.
        without_locals = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        rendered = [structlog.processors.ExceptionRenderer(without_locals), structlog.processors.JSONRenderer()]
    else:
        rendered = [
            _one_line,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, sort_keys=False
            ),
        ]
    logging.getLogger("asyncio").addFilter(_SELDOM)
    structlog.configure(
        processors=[*shared, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(log_level),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Lossy(sys.stderr))),
        cache_logger_on_first_use=False,  # module-level loggers follow a later configure
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[log_level.upper()]))


def _one_line(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape line breaks and control characters in an event: many fields are text from peers.

    Tracebacks are our own text and keep their lines.
    """
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable() and name not in _OWN_LINES:
            event[name] = "".join(one if one.isprintable() else repr(one)[1:-1] for one in value)
    return event
