"""vLLM's /metrics page for a fake engine: the same names and labels, filled from the scheduler.

As in vLLM, the engine's steps update the numbers: a stopped GPU updates nothing, not even gauges, and aborted
requests do not appear.

Source: docs.vllm.ai, "Production Metrics" (V1 engine), and the page of vLLM 0.32; names ending in ``_total`` as
Prometheus shows them.
"""

import time
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from chaos.fake_engine.step_scheduler import StepCounters

_LABELS = ("model_name", "engine")
_FIRST_TOKEN_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_BUCKETS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_BUCKETS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
_ITERATION_BUCKETS = (
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
)  # fmt: skip
_FINISHED_REASONS = ("stop", "length", "abort", "error")


class FakeVllmMetrics:
    """Metrics of one engine process; a restart creates a new one, with counters at 0."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        self._shown = StepCounters()
        started = Gauge("process_start_time_seconds", "Start of the process.", registry=self._registry)
        started.set(time.time())
        self._running = self._gauge("num_requests_running", "Requests in model execution batches.")
        self._waiting = self._gauge("num_requests_waiting", "Requests waiting to be processed.")
        by_reason = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Requests waiting to be processed, by reason.",
            (*_LABELS, "reason"),
            registry=self._registry,
        )
        self._waiting_for_capacity = by_reason.labels(model, "0", "capacity")
        by_reason.labels(model, "0", "deferred")
        self._kv_cache = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prefill tokens processed.")
        self._generation_tokens = self._counter("generation_tokens", "Generation tokens processed.")
        self._prompt_tokens_computed = Counter(
            "vllm:prompt_tokens_by_source",
            "Prefill tokens by source.",
            (*_LABELS, "source"),
            registry=self._registry,
        ).labels(model, "0", "local_compute")
        self._prefix_queries = self._counter("prefix_cache_queries", "Prefix cache queries, in tokens.")
        self._counter("prefix_cache_hits", "Prefix cache hits, in tokens.")
        self._iterations = Histogram(
            "vllm:iteration_tokens_total",
            "Histogram of the tokens per engine step with output.",
            _LABELS,
            registry=self._registry,
            buckets=_ITERATION_BUCKETS,
        ).labels(model, "0")
        self._preemptions = self._counter("num_preemptions", "Cumulative number of preemptions.")
        success = Counter(
            "vllm:request_success",
            "Successfully processed requests.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        self._success = {reason: success.labels(model, "0", reason) for reason in _FINISHED_REASONS}
        self._rejections = Counter(
            "vllm:admission_rejections",
            "Requests rejected by admission limits.",
            (*_LABELS, "reason"),
            registry=self._registry,
        ).labels(model, "0", "max_num_queued_reqs")
        self._first_token = self._histogram("time_to_first_token_seconds", _FIRST_TOKEN_BUCKETS_S)
        self._inter_token = self._histogram("inter_token_latency_seconds", _TOKEN_BUCKETS_S)
        self._per_token = self._histogram("request_time_per_output_token_seconds", _TOKEN_BUCKETS_S)
        self._queue = self._histogram("request_queue_time_seconds", _REQUEST_BUCKETS_S)
        self._request = self._histogram("e2e_request_latency_seconds", _REQUEST_BUCKETS_S)

    def rejected(self) -> None:
        self._rejections.inc()

    def preempted(self) -> None:
        self._preemptions.inc()

    def step(self, now: StepCounters, iterations: Mapping[int, int], *, kv_cache_full: bool) -> None:
        """Show the state after the newest step; ``iterations`` are the steps with output since the last call."""
        before, self._shown = self._shown, now
        self._running.set(now.running)
        self._waiting.set(now.waiting)
        self._waiting_for_capacity.set(now.waiting)
        self._kv_cache.set(1.0 if kv_cache_full else now.kv_cache_ratio)
        self._prompt_tokens.inc(now.prompt_tokens - before.prompt_tokens)
        self._prompt_tokens_computed.inc(now.prompt_tokens - before.prompt_tokens)
        self._generation_tokens.inc(now.generation_tokens - before.generation_tokens)
        self._prefix_queries.inc(now.prefix_queries - before.prefix_queries)
        self._preemptions.inc(now.preemptions - before.preemptions)
        for tokens, steps in iterations.items():
            for _ in range(steps):
                self._iterations.observe(tokens)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def inter_token(self, count: int, *, seconds_each: float) -> None:
        for _ in range(count):
            self._inter_token.observe(seconds_each)

    def finished(self, *, latency_s: float, queued_s: float, decode_s: float, tokens: int) -> None:
        self._success["length"].inc()
        self._request.observe(latency_s)
        self._queue.observe(queued_s)
        if tokens > 1:
            self._per_token.observe(decode_s / (tokens - 1))

    def text(self) -> bytes:
        """The Prometheus text format, version 0.0.4."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, documentation: str) -> Gauge:
        gauge = Gauge(f"vllm:{name}", documentation, _LABELS, registry=self._registry)
        return gauge.labels(self._model, "0")

    def _counter(self, name: str, documentation: str) -> Counter:
        counter = Counter(f"vllm:{name}", documentation, _LABELS, registry=self._registry)
        return counter.labels(self._model, "0")

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        documentation = f"Histogram of {name.removesuffix('_seconds').replace('_', ' ')} in seconds."
        histogram = Histogram(f"vllm:{name}", documentation, _LABELS, registry=self._registry, buckets=buckets)
        return histogram.labels(self._model, "0")
