"""EDS after one change: what one engine's new health costs to encode, by size of the cluster.

Three ways to the same bytes: betterproto2's ``bytes(message)``, the encoder generated from its metadata, and the
join of cached chunks that the control plane uses. All run in one process, in turns, so that the ratios hold
whatever else the machine is doing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from time import perf_counter
from typing import Final

from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint

from benchmarks.harness import ResultColumn, option_parser, publish, result_table
from xds_server.wire.assignment import AssignmentSpec, EndpointSpec, HostPort, LocalitySpec
from xds_server.wire.eds import AssignmentEncoder
from xds_server.wire.encode import encode

SIZES: Final = (10, 100, 1_000, 10_000)
TARGET_US_AT_1000: Final = 50.0
_ZONES: Final = 3
_ROUNDS: Final = 31
# A peer that is slower than this once is not asked again, nor for larger clusters.
_PATIENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EdsEncodeRow:
    """Microseconds for one assignment of ``endpoints`` endpoints; ``None`` where it was not worth the wait.

    ``ours_us`` is the median over changes at different places, ``ours_best_us`` the fastest of them.
    """

    endpoints: int
    encoded_bytes: int
    ours_us: float
    ours_best_us: float
    cold_us: float
    generic_us: float
    betterproto_us: float | None

    @property
    def times_generic(self) -> float:
        return self.generic_us / self.ours_us

    @property
    def times_betterproto(self) -> float | None:
        return None if self.betterproto_us is None else self.betterproto_us / self.ours_us


def measure(endpoints: int, *, with_betterproto: bool) -> EdsEncodeRow:
    """One row; a ``RuntimeError`` if the three ways do not end in the same bytes."""
    engines = [
        EndpointSpec(
            address=HostPort(host=f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", port=8000), health=1, weight=4
        )
        for n in range(endpoints)
    ]
    encoder = AssignmentEncoder()
    first = _assignment(engines)
    started_s = perf_counter()
    encoder.encode(first)
    cold_s = perf_counter() - started_s

    changes_s = []
    encoded = b""
    for round_ in range(_ROUNDS):
        at = round_ * 7919 % endpoints
        engines[at] = replace(engines[at], health=3 if engines[at].health == 1 else 1)
        changed = _assignment(engines)
        started_s = perf_counter()
        encoded = encoder.encode(changed)
        changes_s.append(perf_counter() - started_s)

    message = _message(_assignment(engines))
    if encode(message) != encoded or (with_betterproto and bytes(message) != encoded):
        raise RuntimeError(f"{endpoints} endpoints encode differently")
    return EdsEncodeRow(
        endpoints=endpoints,
        encoded_bytes=len(encoded),
        ours_us=_us(median(changes_s)),
        ours_best_us=_us(min(changes_s)),
        cold_us=_us(cold_s),
        generic_us=_us(_median_s(lambda: encode(message), 5)),
        betterproto_us=_us(_median_s(lambda: bytes(message), 3)) if with_betterproto else None,
    )


def main(argv: Sequence[str]) -> int:
    """0 when one change among 1 000 endpoints is encoded within the target, 1 when not."""
    parser = option_parser("eds_encode", __doc__)
    options = parser.parse_args(argv)

    rows: list[EdsEncodeRow] = []
    patient = True
    for size in SIZES:
        row = measure(size, with_betterproto=patient)
        rows.append(row)
        # Ten times the endpoints take ten times as long, and each row asks four times.
        patient = row.betterproto_us is not None and row.betterproto_us * 10 < _PATIENCE_S * 1e6
    (at_1000,) = [row.ours_us for row in rows if row.endpoints == 1_000]
    table = result_table(
        "EDS encode after one change, microseconds",
        COLUMNS,
        rows,
        caption="ours: cached chunks; encode(): derived protobuf classes; bytes(): betterproto2",
    )
    answer = {
        "benchmark": "eds_encode",
        "target_us_at_1000": TARGET_US_AT_1000,
        "rows": [
            {**asdict(row), "times_generic": row.times_generic, "times_betterproto": row.times_betterproto}
            for row in rows
        ],
    }
    return publish([table], options.json, answer, met=at_1000 <= TARGET_US_AT_1000)


COLUMNS: Final[Sequence[ResultColumn[EdsEncodeRow]]] = (
    ResultColumn(heading="endpoints", cell=lambda row: f"{row.endpoints:,}"),
    ResultColumn(heading="bytes", cell=lambda row: f"{row.encoded_bytes:,}"),
    ResultColumn(heading="ours", cell=lambda row: f"{row.ours_us:,.1f}"),
    ResultColumn(heading="first", cell=lambda row: f"{row.cold_us:,.0f}"),
    ResultColumn(heading="encode()", cell=lambda row: f"{row.generic_us:,.0f}"),
    ResultColumn(
        heading="bytes()",
        cell=lambda row: "skipped" if row.betterproto_us is None else f"{row.betterproto_us:,.0f}",
    ),
    ResultColumn(heading="x encode", cell=lambda row: f"{row.times_generic:,.0f}x"),
    ResultColumn(
        heading="x bytes",
        cell=lambda row: "" if row.times_betterproto is None else f"{row.times_betterproto:,.0f}x",
    ),
)


def _assignment(engines: Sequence[EndpointSpec]) -> AssignmentSpec:
    return AssignmentSpec(
        cluster="pool",
        localities=tuple(
            LocalitySpec(region="eu", zone=f"eu-{zone}", weight=100, endpoints=tuple(engines[zone::_ZONES]))
            for zone in range(_ZONES)
        ),
    )


def _message(spec: AssignmentSpec) -> endpoint.ClusterLoadAssignment:
    return endpoint.ClusterLoadAssignment(
        cluster_name=spec.cluster,
        endpoints=[
            endpoint.LocalityLbEndpoints(
                locality=core.Locality(region=locality.region, zone=locality.zone),
                lb_endpoints=[_lb_endpoint(one) for one in locality.endpoints],
                load_balancing_weight=locality.weight,
            )
            for locality in spec.localities
        ],
    )


def _lb_endpoint(spec: EndpointSpec) -> endpoint.LbEndpoint:
    if not isinstance(spec.address, HostPort):
        raise TypeError("the benchmark's engines have addresses of their own")
    socket_address = core.SocketAddress(address=spec.address.host, port_value=spec.address.port)
    return endpoint.LbEndpoint(
        endpoint=endpoint.Endpoint(address=core.Address(socket_address=socket_address)),
        health_status=core.HealthStatus(spec.health),
        load_balancing_weight=spec.weight,
    )


def _median_s(call: Callable[[], object], rounds: int) -> float:
    times_s = []
    for _ in range(rounds):
        started_s = perf_counter()
        call()
        times_s.append(perf_counter() - started_s)
    return median(times_s)


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
