"""Joined assignments equal their messages, whatever the encoder has cached."""

from dataclasses import replace
from time import perf_counter

import pytest
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.type.v3 import FractionalPercent, FractionalPercentDenominatorType
from envoy_data_plane.google.protobuf import Struct
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_server.wire.assignment import (
    AssignmentSpec,
    DropOverload,
    EndpointSpec,
    HostPort,
    InternalListener,
    LocalitySpec,
)
from xds_server.wire.eds import AssignmentEncoder, encode_assignment
from xds_server.wire.encode import encode

WORDS = st.sampled_from(["", "a", "b", "zone ✓", "x" * 130])
ENDPOINTS = st.builds(
    EndpointSpec,
    address=st.builds(
        HostPort, host=st.sampled_from(["10.0.0.1", "2001:db8::1", ""]), port=st.sampled_from([0, 80, 65_535])
    )
    | st.builds(
        InternalListener,
        name=WORDS,
        destination=st.builds(HostPort, host=st.sampled_from(["10.0.0.1", "2001:db8::1"]), port=st.just(80)),
    ),
    health=st.sampled_from([0, 1, 2, 3, 5]),
    weight=st.sampled_from([None, 0, 1, 128, 2**32 - 1]),
    hostname=WORDS,
    labels=st.lists(st.tuples(WORDS, WORDS | st.lists(WORDS, max_size=3).map(tuple)), max_size=3).map(tuple),
)
LOCALITIES = st.builds(
    LocalitySpec,
    region=WORDS,
    zone=WORDS,
    weight=st.sampled_from([None, 0, 1, 300]),
    priority=st.sampled_from([0, 1, 200]),
    endpoints=st.lists(ENDPOINTS, max_size=4).map(tuple),
)
ASSIGNMENTS = st.builds(
    AssignmentSpec,
    cluster=st.sampled_from(["", "pool", "other"]),
    localities=st.lists(LOCALITIES, max_size=3).map(tuple),
    drop_overloads=st.lists(
        st.builds(DropOverload, category=WORDS, parts_per_million=st.sampled_from([0, 1, 1_000_000])), max_size=2
    ).map(tuple),
    overprovisioning_percent=st.sampled_from([None, 0, 100, 140]),
)


def message(spec: AssignmentSpec) -> endpoint.ClusterLoadAssignment:
    """Equivalent envoy-data-plane message."""
    policy = None
    if spec.drop_overloads or spec.overprovisioning_percent is not None:
        policy = endpoint.ClusterLoadAssignmentPolicy(
            drop_overloads=[
                endpoint.ClusterLoadAssignmentPolicyDropOverload(
                    category=drop.category,
                    drop_percentage=FractionalPercent(
                        numerator=drop.parts_per_million, denominator=FractionalPercentDenominatorType.MILLION
                    ),
                )
                for drop in spec.drop_overloads
            ],
            overprovisioning_factor=spec.overprovisioning_percent,
        )
    return endpoint.ClusterLoadAssignment(
        cluster_name=spec.cluster,
        endpoints=[
            endpoint.LocalityLbEndpoints(
                locality=core.Locality(region=locality.region, zone=locality.zone),
                lb_endpoints=[_lb_endpoint(one) for one in locality.endpoints],
                load_balancing_weight=locality.weight,
                priority=locality.priority,
            )
            for locality in spec.localities
        ],
        policy=policy,
    )


def _lb_endpoint(spec: EndpointSpec) -> endpoint.LbEndpoint:
    if isinstance(spec.address, HostPort):
        address = core.Address(
            socket_address=core.SocketAddress(address=spec.address.host, port_value=spec.address.port)
        )
    else:
        address = core.Address(
            envoy_internal_address=core.EnvoyInternalAddress(
                server_listener_name=spec.address.name, endpoint_id=spec.address.endpoint_id
            )
        )
    labels = {name: value if isinstance(value, str) else list(value) for name, value in spec.labels}
    structs = {"envoy.lb": Struct.from_dict(labels)} if labels else {}
    if isinstance(spec.address, InternalListener):
        structs["envoy.filters.listener.original_dst"] = Struct.from_dict({"local": spec.address.endpoint_id})
    return endpoint.LbEndpoint(
        endpoint=endpoint.Endpoint(address=address, hostname=spec.hostname),
        health_status=core.HealthStatus(spec.health),
        metadata=core.Metadata(filter_metadata=structs) if structs else None,
        load_balancing_weight=spec.weight,
    )


def pool(endpoints: list[EndpointSpec], cluster: str = "pool") -> AssignmentSpec:
    return AssignmentSpec(
        cluster=cluster, localities=(LocalitySpec(zone="a", weight=1, endpoints=tuple(endpoints)),)
    )


def engines(count: int) -> list[EndpointSpec]:
    return [
        EndpointSpec(address=HostPort(host=f"10.0.{n >> 8}.{n & 255}", port=8000), health=1, weight=4)
        for n in range(count)
    ]


@settings(max_examples=150, deadline=None)
@given(ASSIGNMENTS)
def test_assignment_equals_its_message(spec: AssignmentSpec) -> None:
    assert encode_assignment(spec) == encode(message(spec))


@settings(max_examples=60, deadline=None)
@given(st.lists(ASSIGNMENTS, min_size=2, max_size=5))
def test_encoder_cache_does_not_change_results(specs: list[AssignmentSpec]) -> None:
    encoder = AssignmentEncoder()
    for spec in specs:
        assert encoder.encode(spec) == encode_assignment(spec)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_sequence_of_edits_encodes_as_from_scratch(data: st.DataObject) -> None:
    encoder, current = AssignmentEncoder(), engines(200)
    for _ in range(6):
        index = data.draw(st.integers(0, len(current) - 1))
        match data.draw(st.sampled_from(["change", "add", "remove", "rebuild", "move"])):
            case "change":
                current[index] = data.draw(ENDPOINTS)
            case "add":
                current.insert(index, data.draw(ENDPOINTS))
            case "remove":
                del current[index]
            case "rebuild":
                current = [replace(one) for one in current]
            case "move":
                current.append(current.pop(index))
        assert encoder.encode(pool(current)) == encode_assignment(pool(current))


def test_change_at_any_position_is_encoded() -> None:
    """Endpoints are compared in blocks; changes at block borders must be found, too."""
    encoder, current = AssignmentEncoder(), engines(200)
    for index in range(200):
        current[index] = replace(current[index], weight=100_000)
        assert encoder.encode(pool(current)) == encode_assignment(pool(current))


def test_only_the_changed_endpoint_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[EndpointSpec] = []
    original = AssignmentEncoder.encode.__globals__["_chunk"]

    def counting(one: EndpointSpec) -> bytes:
        encoded.append(one)
        chunk: bytes = original(one)
        return chunk

    monkeypatch.setitem(AssignmentEncoder.encode.__globals__, "_chunk", counting)
    encoder, current = AssignmentEncoder(), engines(300)
    encoder.encode(pool(current))
    encoded.clear()

    current[150] = replace(current[150], health=2)
    encoder.encode(pool(current))
    assert encoded == [current[150]]

    encoder.encode(pool([replace(one) for one in current]))  # equal values in new objects
    encoder.encode(pool(current[1:]))
    assert encoded == [current[150]]


def test_views_of_one_cluster_share_chunks() -> None:
    """Two zones share engines with different weights; neither evicts the chunks of the other."""
    encoder = AssignmentEncoder()
    near = LocalitySpec(zone="a", weight=9, endpoints=tuple(engines(3)))
    views = [AssignmentSpec(cluster="pool", localities=(replace(near, weight=weight),)) for weight in (9, 1, 9, 1)]
    assert [encoder.encode(view) for view in views] == [encode_assignment(view) for view in views]
    assert encoder.cached_endpoints == 3


def test_eds_cache_drops_removed_endpoints() -> None:
    encoder = AssignmentEncoder()
    encoder.encode(pool(engines(500)))
    encoder.encode(pool(engines(20), cluster="other"))
    assert encoder.cached_endpoints == 520
    encoder.encode(pool(engines(5)))
    assert encoder.cached_endpoints == 25
    encoder.retain({"pool"})
    assert encoder.cached_endpoints == 5


def test_a_number_out_of_range_is_refused() -> None:
    bad = pool([EndpointSpec(address=HostPort(host="10.0.0.1", port=2**32))])
    with pytest.raises(ValueError, match="does not fit into 32 bits"):
        encode_assignment(bad)


def test_one_change_among_a_thousand_costs_little() -> None:
    """Measured at 30 us; the limit allows for a busy machine, but not for encoding everything (2 ms)."""
    encoder, current = AssignmentEncoder(), engines(1000)
    encoder.encode(pool(current))
    times_s = []
    for index in range(0, 1000, 20):
        current[index] = replace(current[index], health=3)
        spec = pool(current)
        started_s = perf_counter()
        encoder.encode(spec)
        times_s.append(perf_counter() - started_s)
    assert min(times_s) < 500e-6


def test_eds_cache_keeps_both_endpoint_forms():
    def of(*addresses):
        endpoints = tuple(EndpointSpec(address=address) for address in addresses)
        return AssignmentSpec(cluster="pool", localities=(LocalitySpec(zone="a", endpoints=endpoints),))

    plain = HostPort(host="10.0.0.1", port=1)
    encoder = AssignmentEncoder()
    encoder.encode(of(plain))
    encoder.encode(of(InternalListener(name="engine/pool/e", destination=plain)))
    assert encoder.cached_endpoints == 2
    encoder.retain(["other"])
    assert encoder.cached_endpoints == 0
