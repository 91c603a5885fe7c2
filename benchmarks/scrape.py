"""One scrape of a large fleet's control plane: its processor time, and the longest that all others wait for it.

The server is built from the control plane's own parts and a real registry, as in the metrics tests; engines and
proxies have reported something of each kind. Measured: ``/metrics``, without the network.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.harness import ResultColumn, option_parser, publish, result_table
from chaos.history.request_outcomes import quantile
from tests.monitoring.large_fleet import counted
from xds_server.metrics.metric_reference import LARGE
from xds_server.metrics.metric_registry import Metrics

SIZES: Final = (100, 1_000)
ROUNDS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeRow:
    """Medians, in milliseconds of a processor; ``held_ms``: the longest time in one piece."""

    engines: int
    proxies: int
    series: int
    page_bytes: int
    scrape_ms: float
    held_ms: float


async def measure(size: int) -> ScrapeRow:
    """One row, for ``size`` engines and as many proxies."""
    metrics = counted({**LARGE, "engine": size, "node": size})
    scrapes_s, held_s, page = [], [], b""
    for _ in range(ROUNDS):
        began_s = time.process_time()
        page, longest_s = await _scraped(metrics)
        scrapes_s.append(time.process_time() - began_s)
        held_s.append(longest_s)
    return ScrapeRow(
        engines=size,
        proxies=size,
        series=sum(not line.startswith(b"#") for line in page.splitlines()),
        page_bytes=len(page),
        scrape_ms=1000 * (quantile(scrapes_s, 0.5) or 0.0),
        held_ms=1000 * (quantile(held_s, 0.5) or 0.0),
    )


async def _scraped(metrics: Metrics) -> tuple[bytes, float]:
    """A page, and the longest wait of another task meanwhile, in seconds."""
    longest_s = 0.0

    async def waiting() -> None:
        nonlocal longest_s
        while True:
            asked_s = time.process_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.process_time() - asked_s)

    beside = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    page = await metrics.page()
    beside.cancel()
    return page, longest_s


COLUMNS: Final[Sequence[ResultColumn[ScrapeRow]]] = (
    ResultColumn(heading="engines", cell=lambda row: str(row.engines)),
    ResultColumn(heading="proxies", cell=lambda row: str(row.proxies)),
    ResultColumn(heading="series", cell=lambda row: str(row.series)),
    ResultColumn(heading="page", cell=lambda row: f"{row.page_bytes / 1e6:.2f} MB"),
    ResultColumn(heading="one scrape", cell=lambda row: f"{row.scrape_ms:.0f} ms"),
    ResultColumn(heading="in one piece", cell=lambda row: f"{row.held_ms:.0f} ms"),
)


def main(argv: Sequence[str]) -> int:
    """0: it has no target."""
    parser = option_parser("scrape", __doc__)
    options = parser.parse_args(argv)
    rows = [asyncio.run(measure(size)) for size in SIZES]
    table = result_table("one scrape", COLUMNS, rows)
    return publish([table], options.json, {"benchmark": "scrape", "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
