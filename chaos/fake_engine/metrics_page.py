"""vLLM's /metrics page for a fake engine: the same names and labels, filled from the simulated GPU.

As in vLLM, the engine's steps update the numbers: a stopped GPU updates nothing, not even gauges, and aborted
requests do not appear.

Source: docs.vllm.ai, "Production Metrics" (V1 engine); names ending in ``_total`` as Prometheus shows them.
"""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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
_FINISHED_REASONS = ("stop", "length", "abort", "error")


class FakeVllmMetrics:
    """Metrics of one engine process; a restart creates a new one, with counters at 0."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        self._prompt_tokens_seen = 0
        self._generation_tokens_seen = 0
        started = Gauge("process_start_time_seconds", "Start of the process.", registry=self._registry)
        started.set(time.time())
        self._running = self._gauge("num_requests_running", "Requests in model execution batches.")
        self._waiting = self._gauge("num_requests_waiting", "Requests waiting to be processed.")
        self._kv_cache = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prefill tokens processed.")
        self._generation_tokens = self._counter("generation_tokens", "Generation tokens processed.")
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

    def gauges(self, *, running: int, waiting: int, kv_cache_ratio: float) -> None:
        self._running.set(running)
        self._waiting.set(waiting)
        self._kv_cache.set(kv_cache_ratio)

    def totals(self, *, prompt_tokens: int, generation_tokens: int) -> None:
        """Set the token totals since the start; they never decrease."""
        self._prompt_tokens.inc(prompt_tokens - self._prompt_tokens_seen)
        self._generation_tokens.inc(generation_tokens - self._generation_tokens_seen)
        self._prompt_tokens_seen, self._generation_tokens_seen = prompt_tokens, generation_tokens

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
