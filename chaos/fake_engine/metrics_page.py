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
    """Metrics of one engine process, by data-parallel rank; a restart creates a new one, with counters at 0."""

    def __init__(self, model: str, ranks: int = 1) -> None:
        self._registry = CollectorRegistry()
        started = Gauge("process_start_time_seconds", "Start of the process.", registry=self._registry)
        started.set(time.time())
        families = _Families(self._registry)
        self._ranks = tuple(_RankMetrics(families, model, str(rank)) for rank in range(ranks))

    def rejected(self) -> None:
        self._ranks[0].rejections.inc()

    def preempted(self) -> None:
        self._ranks[0].preemptions.inc()

    def step(
        self, now: StepCounters, iterations: Mapping[int, int], *, kv_cache_full: bool, rank: int = 0
    ) -> None:
        """Show the state after the newest step; ``iterations`` are the steps with output since the last call."""
        shown = self._ranks[rank]
        before, shown.shown = shown.shown, now
        shown.running.set(now.running)
        shown.waiting.set(now.waiting)
        shown.waiting_for_capacity.set(now.waiting)
        shown.kv_cache.set(1.0 if kv_cache_full else now.kv_cache_ratio)
        shown.prompt_tokens.inc(now.prompt_tokens - before.prompt_tokens)
        cached = now.prompt_tokens_cached - before.prompt_tokens_cached
        shown.prompt_tokens_computed.inc(now.prompt_tokens - before.prompt_tokens - cached)
        shown.prompt_tokens_hit.inc(cached)
        shown.prompt_tokens_cached.inc(cached)
        shown.generation_tokens.inc(now.generation_tokens - before.generation_tokens)
        shown.prefix_queries.inc(now.prefix_queries - before.prefix_queries)
        shown.prefix_hits.inc(now.prefix_hits - before.prefix_hits)
        shown.preemptions.inc(now.preemptions - before.preemptions)
        for tokens, steps in iterations.items():
            for _ in range(steps):
                shown.iterations.observe(tokens)

    def first_token(self, seconds: float, *, rank: int = 0) -> None:
        self._ranks[rank].first_token.observe(seconds)

    def inter_token(self, count: int, *, seconds_each: float, rank: int = 0) -> None:
        for _ in range(count):
            self._ranks[rank].inter_token.observe(seconds_each)

    def finished(self, *, latency_s: float, queued_s: float, decode_s: float, tokens: int, rank: int = 0) -> None:
        shown = self._ranks[rank]
        shown.success["length"].inc()
        shown.request.observe(latency_s)
        shown.queue.observe(queued_s)
        if tokens > 1:
            shown.per_token.observe(decode_s / (tokens - 1))

    def text(self) -> bytes:
        """The Prometheus text format, version 0.0.4."""
        return generate_latest(self._registry)


class _Families:
    """The metrics of the page, without labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.running = self._gauge("num_requests_running", "Requests in model execution batches.")
        self.waiting = self._gauge("num_requests_waiting", "Requests waiting to be processed.")
        self.waiting_by_reason = self._gauge(
            "num_requests_waiting_by_reason", "Requests waiting to be processed, by reason.", "reason"
        )
        self.kv_cache = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self.prompt_tokens = self._counter("prompt_tokens", "Prefill tokens processed.")
        self.generation_tokens = self._counter("generation_tokens", "Generation tokens processed.")
        self.prompt_tokens_by_source = self._counter(
            "prompt_tokens_by_source", "Prefill tokens by source.", "source"
        )
        self.prompt_tokens_cached = self._counter("prompt_tokens_cached", "Cached prompt tokens.")
        self.prefix_queries = self._counter("prefix_cache_queries", "Prefix cache queries, in tokens.")
        self.prefix_hits = self._counter("prefix_cache_hits", "Prefix cache hits, in tokens.")
        self.iterations = Histogram(
            "vllm:iteration_tokens_total",
            "Histogram of the tokens per engine step with output.",
            _LABELS,
            registry=registry,
            buckets=_ITERATION_BUCKETS,
        )
        self.preemptions = self._counter("num_preemptions", "Cumulative number of preemptions.")
        self.success = self._counter("request_success", "Successfully processed requests.", "finished_reason")
        self.rejections = self._counter("admission_rejections", "Requests rejected by admission limits.", "reason")
        self.first_token = self._histogram("time_to_first_token_seconds", _FIRST_TOKEN_BUCKETS_S)
        self.inter_token = self._histogram("inter_token_latency_seconds", _TOKEN_BUCKETS_S)
        self.per_token = self._histogram("request_time_per_output_token_seconds", _TOKEN_BUCKETS_S)
        self.queue = self._histogram("request_queue_time_seconds", _REQUEST_BUCKETS_S)
        self.request = self._histogram("e2e_request_latency_seconds", _REQUEST_BUCKETS_S)

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"vllm:{name}", documentation, (*_LABELS, *labels), registry=self._registry)

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"vllm:{name}", documentation, (*_LABELS, *labels), registry=self._registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        documentation = f"Histogram of {name.removesuffix('_seconds').replace('_', ' ')} in seconds."
        return Histogram(f"vllm:{name}", documentation, _LABELS, registry=self._registry, buckets=buckets)


class _RankMetrics:
    """The metrics of one data-parallel rank."""

    def __init__(self, families: _Families, model: str, rank: str) -> None:
        self.shown = StepCounters()
        self.running = families.running.labels(model, rank)
        self.waiting = families.waiting.labels(model, rank)
        self.waiting_for_capacity = families.waiting_by_reason.labels(model, rank, "capacity")
        families.waiting_by_reason.labels(model, rank, "deferred")
        self.kv_cache = families.kv_cache.labels(model, rank)
        self.prompt_tokens = families.prompt_tokens.labels(model, rank)
        self.generation_tokens = families.generation_tokens.labels(model, rank)
        self.prompt_tokens_computed = families.prompt_tokens_by_source.labels(model, rank, "local_compute")
        self.prompt_tokens_hit = families.prompt_tokens_by_source.labels(model, rank, "local_cache_hit")
        self.prompt_tokens_cached = families.prompt_tokens_cached.labels(model, rank)
        self.prefix_queries = families.prefix_queries.labels(model, rank)
        self.prefix_hits = families.prefix_hits.labels(model, rank)
        self.iterations = families.iterations.labels(model, rank)
        self.preemptions = families.preemptions.labels(model, rank)
        self.success = {reason: families.success.labels(model, rank, reason) for reason in _FINISHED_REASONS}
        self.rejections = families.rejections.labels(model, rank, "max_num_queued_reqs")
        self.first_token = families.first_token.labels(model, rank)
        self.inter_token = families.inter_token.labels(model, rank)
        self.per_token = families.per_token.labels(model, rank)
        self.queue = families.queue.labels(model, rank)
        self.request = families.request.labels(model, rank)
