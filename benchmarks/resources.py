"""Cost of one full answer of ``/v1/resources``: processor time, and longest wait of other requests.

Policies of one pool are translated as the control plane does it; asked is ``/v1/resources``, without the network,
for one proxy and then for another of the same view. ``bug-report`` asks so for each proxy.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from benchmarks.harness import ResultColumn, option_parser, publish, result_table
from benchmarks.policy_to_snapshot import ZONES, pool_text
from chaos.history.request_outcomes import quantile
from policies.load import load
from xds_server.admin.config_dump_routes import add_config_dump
from xds_server.admin_api.server_types import ServerInfo
from xds_server.model.fleet import declared
from xds_server.model.snapshot import Snapshot
from xds_server.model.view import View
from xds_server.reconcile.pipeline import BuildInputs, Pipeline
from xds_server.xds import NodeInfo

SIZES: Final = (100, 1_000)
ROUNDS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceViewRow:
    """Medians, in milliseconds of a processor; ``held_ms``: the longest that others waited for a turn."""

    engines: int
    answer_bytes: int
    first_ms: float
    first_held_ms: float
    again_ms: float
    again_held_ms: float


class _Served:
    """What each proxy is served, as the routes ask for it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def server_info(self) -> ServerInfo:
        raise AssertionError("the measured routes do not ask for it")

    def served(self, node: str) -> Snapshot:  # noqa: ARG002 -- the same for all of a view
        return self._snapshot

    def expected(self, node: NodeInfo) -> Snapshot:  # noqa: ARG002
        return self._snapshot


def snapshot_of(engines: int) -> Snapshot:
    """The snapshot of a gateway for one pool of ``engines`` engines."""
    with tempfile.TemporaryDirectory(prefix="switchgear-bench-") as folder:
        (Path(folder) / "pool.yaml").write_text(pool_text(0, engines))
        policies = load([Path(folder)])
    view = View(zone=ZONES[0])
    inputs = BuildInputs(
        policies=policies,
        fleet=declared(policies),
        views=frozenset({view}),
        proxies_by_role={"gateway": 3},
        now_s=0.0,
    )
    return Pipeline().build(inputs).snapshots[view]


async def measure(engines: int) -> ResourceViewRow:
    """One row, for ``engines`` engines."""
    snapshot, taken, size = snapshot_of(engines), [], 0
    for _ in range(ROUNDS):
        app = web.Application()
        add_config_dump(app, _Served(snapshot))
        app.freeze()
        first, again = await _asked(app, "n1"), await _asked(app, "n2")
        taken.append((*first[:2], *again[:2]))
        size = first[2]
    first_s, first_held_s, again_s, again_held_s = (
        1000 * (quantile(list(column), 0.5) or 0.0) for column in zip(*taken, strict=True)
    )
    return ResourceViewRow(
        engines=engines,
        answer_bytes=size,
        first_ms=first_s,
        first_held_ms=first_held_s,
        again_ms=again_s,
        again_held_ms=again_held_s,
    )


async def _asked(app: web.Application, node: str) -> tuple[float, float, int]:
    """CPU seconds of an answer, the longest wait of another task meanwhile, and its size in bytes."""
    longest_s = 0.0

    async def waiting() -> None:
        nonlocal longest_s
        while True:
            # Streams wait for the kernel, which frees the interpreter for other tasks.
            asked_s = time.process_time()
            await asyncio.sleep(0.001)
            longest_s = max(longest_s, time.process_time() - asked_s)

    beside = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    request = make_mocked_request("GET", f"/v1/resources?node={node}", app=app)
    began_s = time.process_time()
    found = await app.router.resolve(request)
    answer = await found.handler(request)
    cost_s = time.process_time() - began_s
    await asyncio.sleep(0.002)
    beside.cancel()
    assert isinstance(answer, web.Response)
    return cost_s, longest_s, len(answer.text or "")


COLUMNS: Final[Sequence[ResultColumn[ResourceViewRow]]] = (
    ResultColumn(heading="engines", cell=lambda row: str(row.engines)),
    ResultColumn(heading="answer", cell=lambda row: f"{row.answer_bytes / 1e6:.2f} MB"),
    ResultColumn(heading="first", cell=lambda row: f"{row.first_ms:.0f} ms"),
    ResultColumn(heading="others wait", cell=lambda row: f"{row.first_held_ms:.1f} ms"),
    ResultColumn(heading="again", cell=lambda row: f"{row.again_ms:.1f} ms"),
    ResultColumn(heading="others wait", cell=lambda row: f"{row.again_held_ms:.1f} ms"),
)


def main(argv: Sequence[str]) -> int:
    """0: it has no target."""
    parser = option_parser("resources", __doc__)
    options = parser.parse_args(argv)
    rows = [asyncio.run(measure(engines)) for engines in SIZES]
    table = result_table("what a proxy is served, in full", COLUMNS, rows)
    return publish([table], options.json, {"benchmark": "resources", "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
