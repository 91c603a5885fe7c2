"""``docs/metrics.md``, rendered from the declarations."""

from collections.abc import Iterator, Mapping
from typing import Final

from xds_server.metrics.metric_table import CHAPTERS, TABLE

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
        "<!-- Made from xds_server/metrics by `make generated`; edit that. -->",
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
    for chapter in CHAPTERS:
        yield from (
            f"## {chapter.title}",
            "",
            "| metric | what it means | labels | series | what to do |",
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
    "budget refused a second one. So the two look the same, hedges are counted as retries, and each",
    "hedge hides one failed call. In a pool that hedges, as many failed requests as there were hedges can be",
    "missing from the ratio: at most `hedging.maxPercent` of the calls in flight, 5 % by default. Pools",
    "without hedging are exact. Where that matters, look at `switchgear_attempts_total` of the outcome",
    "`failure` beside it, which no hedge makes smaller.",
)


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")
