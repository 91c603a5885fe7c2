"""The counters of an engine's metrics page that show progress.

A page is tens of kilobytes, mostly histograms, and is read twice a second per engine, so samples are searched in
the bytes and the rest is not parsed. Invalid numbers (NaN, negative, infinite) raise an error.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from engine.latency_histogram import FIRST_TOKEN, PER_TOKEN, Histogram, histogram

_GENERATION: Final = (b"vllm:generation_tokens_total", b"vllm:generation_tokens")
_PROMPT: Final = (b"vllm:prompt_tokens_total", b"vllm:prompt_tokens")
_RUNNING: Final = (b"vllm:num_requests_running",)
_WAITING: Final = (b"vllm:num_requests_waiting",)
# The second name is that of older engines.
_KV_CACHE: Final = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
_STARTED: Final = (b"process_start_time_seconds",)
_PREEMPTIONS: Final = (b"vllm:num_preemptions_total", b"vllm:num_preemptions")
_FINISHED: Final = (b"vllm:request_success_total", b"vllm:request_success")
_REJECTED: Final = (b"vllm:admission_rejections_total",)
_FIRST_TOKENS: Final = (b"vllm:time_to_first_token_seconds_count",)
# All of these come from the engine core and change at the end of a scheduler step. During a prefill only the KV
# cache usage does: prompt tokens count once the whole prompt is read (vLLM 0.32). Absent ones are ignored.
_STEPS: Final = (
    _GENERATION,
    _PROMPT,
    _RUNNING,
    _WAITING,
    _KV_CACHE,
    (b"vllm:prefix_cache_queries_total", b"vllm:prefix_cache_queries", b"vllm:gpu_prefix_cache_queries_total"),
    (b"vllm:iteration_tokens_total_count",),
    _PREEMPTIONS,
)
_ABORT: Final = b'finished_reason="abort"'
_RANK: Final = b'engine="'


class MetricsError(ValueError):
    """Counters are missing or invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCounters:
    """One data-parallel rank: its requests, and ``steps``, the values that only a scheduler step changes."""

    rank: str
    running: int
    waiting: int
    steps: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmCounters:
    """Counters of an engine, summed over data-parallel ranks.

    Tokens since the start; current requests; ``kv_cache_usage_ratio`` 0..1 of the fullest rank. ``started_at_s``
    is the engine's wall clock and only identifies the boot. The rest counts since the start, None or 0 if not
    reported: requests with a first token, finished, failed, aborted and rejected, preemptions. ``ranks`` are in
    order of their labels.
    """

    generation_tokens: float
    prompt_tokens: float
    running: int
    waiting: int
    kv_cache_usage_ratio: float | None = None
    started_at_s: float | None = None
    finished: float = 0.0
    errors: float = 0.0
    aborts: float = 0.0
    rejected: float = 0.0
    preemptions: float = 0.0
    first_tokens: float | None = None
    ranks: tuple[RankCounters, ...] = ()
    first_token: Histogram | None = None
    per_token: Histogram | None = None

    @property
    def tokens(self) -> float:
        """Prompt and generated tokens since the start; grows whenever the engine works."""
        return self.generation_tokens + self.prompt_tokens


def vllm_counters(text: bytes, *, latency: bool = False) -> VllmCounters:
    """Parse a Prometheus page; MetricsError names the first missing or invalid counter.

    ``latency``: parse the histograms too, which are most of the page.
    """
    kv_cache = _first(text, _KV_CACHE)
    started = _first(text, _STARTED)
    # Several API processes report no start time, and no gauge before the first request.
    gauge = _needed if started else _first
    return VllmCounters(
        generation_tokens=math.fsum(_needed(text, _GENERATION)),
        prompt_tokens=math.fsum(_needed(text, _PROMPT)),
        running=round(math.fsum(gauge(text, _RUNNING))),
        waiting=round(math.fsum(gauge(text, _WAITING))),
        kv_cache_usage_ratio=max(kv_cache) if kv_cache else None,
        started_at_s=started[0] if started else None,
        finished=math.fsum(_first(text, _FINISHED)),
        errors=_finished_by(text, b"error"),
        aborts=_finished_by(text, b"abort"),
        rejected=math.fsum(_first(text, _REJECTED)),
        preemptions=math.fsum(_first(text, _PREEMPTIONS)),
        first_tokens=math.fsum(first_tokens) if (first_tokens := _first(text, _FIRST_TOKENS)) else None,
        ranks=_ranks(text),
        first_token=histogram(text, FIRST_TOKEN) if latency else None,
        per_token=_per_token(text) if latency else None,
    )


def _ranks(text: bytes) -> tuple[RankCounters, ...]:
    """Counters of each rank; an engine without rank labels is one rank."""
    found: dict[str, dict[str, float]] = {}
    for names in _STEPS:
        for name in names:
            lines = list(_lines(text, name))
            for line in lines:
                _add(found, name, line)
            if lines:
                break
    for name in _FINISHED:
        for line in _lines(text, name):
            # The API process might count aborts itself.
            if _ABORT not in line:
                _add(found, name, line)
    return tuple(
        RankCounters(
            rank=rank,
            running=round(values.get("vllm:num_requests_running", 0.0)),
            waiting=round(values.get("vllm:num_requests_waiting", 0.0)),
            steps=tuple(sorted(values.items())),
        )
        for rank, values in sorted(found.items(), key=lambda one: (len(one[0]), one[0]))
    )


def _add(found: dict[str, dict[str, float]], name: bytes, line: bytes) -> None:
    """Add a sample to the values of its rank."""
    try:
        value = _value(name, line[line.rfind(b"}") + 1 :])
    except MetricsError:
        return  # optional; the needed ones are checked elsewhere
    _, labelled, rest = line.partition(_RANK)
    rank = rest.partition(b'"')[0].decode("ascii", "replace") if labelled else ""
    values = found.setdefault(rank, {})
    values[name.decode()] = values.get(name.decode(), 0.0) + value


def _per_token(text: bytes) -> Histogram | None:
    return next((found for name in PER_TOKEN if (found := histogram(text, name)) is not None), None)


def _finished_by(text: bytes, reason: bytes) -> float:
    """Requests finished for this reason, over all ranks."""
    label = b'finished_reason="' + reason + b'"'
    for name in _FINISHED:
        found = [line for line in _lines(text, name) if label in line]
        if found:
            return math.fsum(_value(name, line[line.rfind(b"}") + 1 :]) for line in found)
    return 0.0


def _needed(text: bytes, names: tuple[bytes, ...]) -> list[float]:
    found = _first(text, names)
    if not found:
        msg = f"no {names[0].decode()} in the metrics"
        raise MetricsError(msg)
    return found


def _first(text: bytes, names: tuple[bytes, ...]) -> list[float]:
    """Values of the first name with samples."""
    for name in names:
        found = [_value(name, sample) for sample in _samples(text, name)]
        if found:
            return found
    return []


def _samples(text: bytes, name: bytes) -> Iterator[bytes]:
    """Values of the samples of exactly this name."""
    for line in _lines(text, name):
        # Label values may contain spaces and braces; the last brace closes.
        yield line[line.rfind(b"}") + 1 :]


def _lines(text: bytes, name: bytes) -> Iterator[bytes]:
    """Labels and values of the samples of exactly this name."""
    start = text.find(name)
    while start != -1:
        end = text.find(b"\n", start)
        line = text[start + len(name) : end if end != -1 else len(text)]
        if (start == 0 or text[start - 1 : start] == b"\n") and line[:1] in (b"{", b" ", b"\t"):
            yield line
        start = text.find(name, start + len(name))


def _value(name: bytes, sample: bytes) -> float:
    words = sample.split()
    try:
        value = float(words[0])
    except (IndexError, ValueError) as error:
        msg = f"{name.decode()} has no number"
        raise MetricsError(msg) from error
    if not math.isfinite(value) or value < 0:
        msg = f"{name.decode()} is {value}"
        raise MetricsError(msg)
    return value
