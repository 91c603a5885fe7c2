"""Every metric that ``serve`` may expose: what it means, its labels, and what to do about it.

The one place that ``docs/metrics.md``, alert rules and dashboards are made from; a test holds it against a running
server, both ways.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from engine.process_metrics import CONTROL_PLANE
from xds_server.metric_reference.control_metrics import CONTROL, PROXIES, TELEMETRY
from xds_server.metric_reference.fleet_metrics import CALLERS, ENGINES, POOLS
from xds_server.metric_reference.metric_spec import MetricKind, MetricSpec, metric_spec


def _row(name: str, kind: MetricKind, unit: str, meaning: str, do: str) -> MetricSpec:
    return MetricSpec(name=f"process_{name}", kind=kind, unit=unit, meaning=meaning, do=do)


PROCESS: Final = (
    metric_spec(
        "build_info", "gauge", "boolean", "1, by part and version of Switchgear.",
        "Two versions for long: a rollout that stopped half way.",
        labels={"component": (CONTROL_PLANE,), "version": ()}, per=("version",),
    ),
    _row(
        "cpu_seconds_total", "counter", "seconds", "Time of a CPU that the process has used.",
        "Its rate above 0.8: docs/benchmarks.md says what engines and proxies cost.",
    ),
    _row(
        "resident_memory_bytes", "gauge", "bytes", "Memory that the process holds.",
        "Rising for days beyond what docs/limits.md says it grows by: a bug.",
    ),
    _row("virtual_memory_bytes", "gauge", "bytes", "Address space of the process.", "Nothing."),
    _row(
        "start_time_seconds", "gauge", "seconds", "When the process started, since the epoch.",
        "A change is a restart: the log before it says why.",
    ),
    _row(
        "open_fds", "gauge", "descriptors", "Open descriptors; each proxy and each agent is one or more.",
        "Near `process_max_fds`: raise the limit (SG233).",
    ),
    _row("max_fds", "gauge", "descriptors", "Descriptors that the process may have.", "As above."),
)  # fmt: skip


CHAPTERS: Final[Mapping[str, Sequence[MetricSpec]]] = {
    "What callers see": CALLERS,
    "Engines": ENGINES,
    "Pools": POOLS,
    "Proxies": PROXIES,
    "Telemetry": TELEMETRY,
    "The control plane itself": CONTROL,
    "Its process": PROCESS,
}
TABLE: Final[Mapping[str, MetricSpec]] = {one.name: one for chapter in CHAPTERS.values() for one in chapter}

LARGE: Final[Mapping[str, int]] = {
    "pool": 10, "zone": 3, "engine": 1000, "node": 1000, "region": 3, "secret": 10, "version": 1,
}  # fmt: skip
"""The fleet that the reference states series for."""


def markdown() -> str:
    """``docs/metrics.md``."""
    return "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    total = _spaced(sum(one.most_series(LARGE) for one in TABLE.values()))
    yield from (
        "# Metrics",
        "",
        "<!-- Made from xds_server/metric_reference by `make generated`; edit that. -->",
        "",
        "`switchgear serve` exposes these at `/metrics` of its admin port. Seconds, bytes and ratios (0 to 1);",
        "counters end in `_total`. Gauges of pools are the same on every replica, so take `max`; counters count",
        "what came to each replica, so take `sum`. Alerts, recording rules and dashboards made of them are in",
        "`deploy/monitoring/`, and what to do about each alert in [runbooks](runbooks/index.md).",
        "",
        "Labels are closed sets, written out below, or follow from what is declared and who is connected: pool,",
        "zone, engine, region (also as *from* and *to*), node (a proxy's id), secret, and the one version that",
        "runs. A series ends with its subject, and nothing that callers send becomes a label. With 1 000",
        f"engines in 10 pools, 3 zones, 3 regions and 1 000 proxies one replica exposes at most {total} series;",
        "the column *series* says how many of them are of each metric.",
        "",
        *_SCRAPING,
    )
    for title, chapter in CHAPTERS.items():
        yield from (
            f"## {title}",
            "",
            "| metric | what it means | labels | series | what to do |",
            "|---|---|---|---|---|",
        )
        for one in chapter:
            there = f" Only {one.where}." if one.where else ""
            labels = "; ".join(
                f"`{name}`" + (f": {', '.join(values)}" if values else "") for name, values in one.labels.items()
            )
            yield (
                f"| `{one.name}` | {one.meaning} ({one.kind}, {one.unit}){there} | {labels or '-'} "
                f"| {_spaced(one.most_series(LARGE))} | {one.do} |"
            )
        yield ""
    yield from _GOODPUT


_SCRAPING: Final = (
    "## Scraping",
    "",
    "For a Prometheus beside the server. Rules and dashboards tell installations apart by `job` and `namespace`,",
    "so give each one of its own:",
    "",
    "```yaml",
    "rule_files: [deploy/monitoring/rules.yaml]",
    "scrape_configs:",
    "- job_name: switchgear",
    "  static_configs:",
    "  - {targets: ['127.0.0.1:18001'], labels: {namespace: inference}}",
    "```",
    "",
    "A server with `--tls-cert` is asked by https, with a certificate or a token that `--access` lets read; with",
    "`--open-metrics` it asks for neither ([security](security.md#the-admin-port)):",
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
    "In a cluster the chart's ServiceMonitor and PrometheusRule do both ([the chart](deploy.md)).",
    "",
)

_GOODPUT: Final = (
    "## The share of good answers",
    "",
    "`pool:switchgear_goodput:ratio_rate5m` and its longer windows are good / (good + refused + late + lost):",
    "whole answers, requests refused, requests whose time was up, and calls that failed or that an engine",
    "turned away, less those that were tried again (`switchgear_retries_total`). Callers who leave, and their",
    "own mistakes, are neither.",
    "",
    "**Hedges hide failures.** To Envoy a hedge is a retry: what proxies tell of a call is its number within",
    "its request, and whether it was cut short for time, be that because another call won or because the",
    "budget refused a second one. So the two cannot be told apart, hedges are counted as retries, and each",
    "hedge hides one failed call. In a pool that hedges, as many failed requests as there were hedges can be",
    "missing from the ratio: at most `hedging.maxPercent` of the calls in flight, 5 % by default. Pools",
    "without hedging are exact. Where that matters, look at `switchgear_attempts_total` of the outcome",
    "`failure` beside it, which no hedge makes smaller.",
)


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")
