"""Names that the proxies of one host may have, all together."""

import pytest

from tests.xds_server.publish.resource_fixtures import cluster
from xds_server.model.snapshot import snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.publish import Publisher, Session, held_names
from xds_server.wire.decode import DeltaDiscoveryRequest
from xds_server.xds import StreamError, StreamErrorKind, XdsVariant
from xds_server.xds.messages import NAME_BYTES

HOST = "ipv4:10.0.0.1"


@pytest.fixture
def publisher() -> Publisher:
    return Publisher(view_of=lambda _: "v", snapshot_for=lambda _: snapshot([cluster("a", "1")]))


def joined(publisher: Publisher, node: str, host: str = HOST) -> Session:
    session = publisher.connect(XdsVariant.DELTA, f"{host}:{node.encode().hex()}", lambda: None)
    send(session, node)
    return session


def send(session: Session, node: str = "", **fields: object) -> None:
    request = DeltaDiscoveryRequest(type_url=ENDPOINT, **fields)
    if node:
        request.node.id = node
    session.request(request.SerializeToString(), 0.0)


def names(count: int, of: str = "n") -> list[str]:
    return [f"{of}{number:03}" for number in range(count)]


def test_names_of_a_host_are_limited_across_its_streams(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_names, "MAX_BYTES_OF_HOST", 10 * (NAME_BYTES + 4))
    one, other = joined(publisher, "1"), joined(publisher, "2")
    send(one, resource_names_subscribe=names(6))
    with pytest.raises(StreamError) as refused:
        send(other, resource_names_subscribe=names(5))
    assert refused.value.flaw is StreamErrorKind.NAMES
    other.close()
    send(joined(publisher, "3", "ipv4:10.0.0.2"), resource_names_subscribe=names(10))
    send(one, resource_names_subscribe=names(4, "m"), resource_names_unsubscribe=names(2))
    send(joined(publisher, "4"), resource_names_subscribe=names(2))
    one.close()
    send(joined(publisher, "5"), resource_names_subscribe=names(8))


def test_only_unknown_names_of_an_earlier_stream_count(publisher: Publisher) -> None:
    session = publisher.connect(XdsVariant.DELTA, f"{HOST}:1", lambda: None)
    request = DeltaDiscoveryRequest(type_url=CLUSTER, initial_resource_versions={"a": "1", "gone": "22"})
    request.node.id = "1"
    session.request(request.SerializeToString(), 0.0)
    assert list(publisher.held_names._by_host.values()) == [NAME_BYTES + len("gone") + len("22")]
    session.close()
    assert not publisher.held_names._by_host
