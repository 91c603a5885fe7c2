"""``docs/metrics.md``, rendered from the declarations."""

from collections.abc import Iterator, Mapping
from typing import Final

from xds_server.metrics.metric_table import CHAPTERS, TABLE

LARGE: Final[Mapping[str, int]] = {
    "pool": 10, "zone": 3, "engine": 1000, "node": 1000, "region": 3, "route": 10, "adapter": 10, "secret": 10,
    "version": 1, "port": 1, "tenant": 20,
}  # fmt: skip
"""Fleet size for the series counts in the reference."""


def markdown() -> str:
    """``docs/metrics.md``."""
    return "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    total = _spaced(sum(one.most_series(LARGE) for one in TABLE.values()))
    yield from (
        "# Metrics",
        "",
        "<!-- Generated from xds_server/metrics by `make generated`; do not edit. -->",
        "",
        "`switchgear serve` exposes these metrics at `/metrics` on its admin port. Units are "
        "seconds, bytes and ratios",
        "(0 to 1); counters end in `_total`. Pool gauges are equal on all replicas: aggregate with "
        "`max`. Counters cover",
        "one replica: aggregate with `sum`. Alerts, recording rules and dashboards are in",
        "`deploy/monitoring/`; the [runbooks](runbooks/index.md) cover each alert.",
        "",
        "Labels are closed sets, listed below, or follow from declared and connected subjects: pool,",
        "zone, engine, region (also as *from* and *to*), route, adapter, node (a proxy's id), secret, port,",
        "tenant, and the running version. Series are deleted with their subject; labels never contain caller",
        "input.",
        "With 1 000 engines in 10 pools, 10 routes, 3 zones, 3 regions, 20 tenants and 1 000 proxies one replica",
        f"exposes at most {total} series; the column *series* gives the number for each metric.",
        "",
        *_SCRAPING,
    )
    for chapter in CHAPTERS:
        yield from (
            f"## {chapter.title}",
            "",
            "| metric | meaning | labels | series | what to do |",
            "|---|---|---|---|---|",
        )
        for one in chapter.specs():
            there = f" Only {one.where}." if one.where else ""
            labels = "; ".join(
                f"`{name}`" + (f": {', '.join(values)}" if values else "") for name, values in one.labels.items()
            )
            yield (
                f"| `{one.name}` | {one.help} ({one.kind}, {one.unit}){there} | {labels or '-'} "
                f"| {_spaced(one.most_series(LARGE))} | {one.do} |"
            )
        yield ""
    yield from _LATENCY
    yield from _OBJECTIVES
    yield from _GOODPUT


_SCRAPING: Final = (
    "## Scraping",
    "",
    "For a Prometheus server next to Switchgear. Rules and dashboards distinguish installations by `job` and",
    "`namespace`; give each installation its own:",
    "",
    "```yaml",
    "rule_files: [deploy/monitoring/rules.yaml]",
    "scrape_configs:",
    "- job_name: switchgear",
    "  static_configs:",
    "  - {targets: ['127.0.0.1:18001'], labels: {namespace: inference}}",
    "```",
    "",
    "With `--tls-cert`, scrape by HTTPS with a certificate or token that `--access` allows to read. With",
    "`--open-metrics` no credentials are needed ([security](security.md#the-admin-port)):",
    "",
    "```yaml",
    "scrape_configs:",
    "- job_name: switchgear",
    "  scheme: https",
    "  tls_config: {ca_file: certs/ca.crt, cert_file: certs/operator.crt, key_file: certs/operator.key}",
    "  # or: authorization: {credentials_file: screen.token}",
    "  static_configs:",
    "  - {targets: ['localhost:18001'], labels: {namespace: inference}}",
    "```",
    "",
    "In a cluster, the chart's ServiceMonitor and PrometheusRule do both ([the chart](deploy.md)).",
    "",
)

_LATENCY: Final = (
    "## Latency",
    "",
    "`switchgear_attempt_duration_seconds` and `switchgear_attempt_first_byte_seconds` come from access logs of",
    "proxies, so they include the network and the wait in the engine's queue. A call is counted when it ends.",
    "",
    "- **First byte** counts streams only. With `spec.firstTokenGate` it is the time to the first token (TTFT).",
    "  Without the gate vLLM sends headers before the first token, and the time is that of the headers.",
    "- **Retries** count from the start of the first try of their request. The server remembers the last 4 096",
    "  first tries that failed. With sampled access logs it misses some: their retries count from their own",
    "  start. A hedge counts from the first try, too, if the entry of that try arrives first.",
    "- **Sampled** calls count with their weight, so a rate is right, and a quantile rests on fewer calls.",
    "- **Between tokens**: access logs have no tokens, and engines know no routes, classes or outcomes. Agents",
    "  report their engine's histogram: `switchgear_pool_token_gap_seconds` is that of all requests of",
    "  a pool. Per engine there are two quantiles: `switchgear_engine_time_per_output_token_seconds`.",
    "- **Wait**: no access log separates the queue from the prefill. Compare the first byte at low and high load.",
    "",
    "The histograms have classic buckets. Prometheus scrapes native histograms only over protobuf, which the",
    "client library does not write. Prometheus 3 can store classic ones as native histograms with custom buckets:",
    "set `convert_classic_histograms_to_nhcb: true` in the scrape configuration.",
    "",
)

_OBJECTIVES: Final = (
    "## Objectives",
    "",
    "A ModelRoute states what its callers are promised, and alerts watch how fast the error budget is spent. An",
    "EnginePool may do so for the calls of all routes, also those that fall back to it:",
    "",
    "```",
    "objectives:",
    "  goodPercent: 99.5",
    "  firstToken: {p95: 2500ms, p99: 5s}",
    "  total: {p99: 60s}",
    "  betweenTokens: {p99: 100ms}  # of an EnginePool only",
    "```",
    "",
    "`switchgear_objective_calls_total` counts what an objective judges, `switchgear_objective_good_calls_total`",
    "the calls within it; `route:switchgear_objective_bad:ratio_rate5m` and its longer windows are the share",
    "beyond it. The burn rate is that share over the error budget, 1 minus `switchgear_objective_target_ratio`.",
    "A limit for a percentile is the same promise: p99 within 5 s means that at most 1 % of the calls take",
    "longer, so its budget is 1 %. Limits are compared call by call, not read from buckets. Each replica counts",
    "what its proxies report, from its start on; Prometheus adds them up. `switchgear get objectives` shows one",
    "replica's shares and burn rates over 5 min to 6 h, without Prometheus.",
    "",
    "`betweenTokens` judges gaps between tokens instead of calls, from the engines' histograms: between two",
    "bounds the count is interpolated. Every replica hears all agents, so a sum over replicas counts gaps several",
    "times; shares and burn rates are not affected.",
    "",
    "`goodPercent` counts each request once: a failed try that is retried with success is good. In a pool with",
    "hedging, a caller who leaves looks like a hedge that lost, and does not count.",
    "",
)

_GOODPUT: Final = (
    "## Goodput",
    "",
    "`pool:switchgear_goodput:ratio_rate5m` and its longer windows are good / (good + refused + late + lost):",
    "complete answers; refused requests; timed-out requests; and failed or shed calls minus those that were",
    "retried (`switchgear_retries_total`). Caller errors and callers who leave",
    "count on neither side.",
    "",
    "**Hedges hide failures.** Envoy reports a hedge as a retry. Its access log gives a call's number within the",
    "request, and whether the call was cut short: because another call won, or because the retry",
    "budget refused a second one. Hedges are therefore counted as retries, and each",
    "hedge hides one failed call. In a pool with hedging, the ratio can miss as many failed requests",
    "as there were hedges: at most `hedging.maxPercent` of the calls in flight, 5 % by default. Pools",
    "without hedging are exact. In pools with hedging, also check `switchgear_attempts_total` with outcome",
    "`failure`; hedges do not lower it.",
)


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")
