"""Which encoded responses are shared and kept, and how many."""

from xds_server.model.type_urls import ENDPOINT
from xds_server.wire.decode import DeltaDiscoveryResponse
from xds_server.xds import Response, ResponseCache, XdsVariant
from xds_server.xds.messages import NAME_BYTES
from xds_server.xds.response_cache import CACHED_RESPONSES, MAX_REMOVED_BYTES


def response(nonce: str, *removed: str) -> Response:
    return Response(
        mode=XdsVariant.DELTA, type_url=ENDPOINT, nonce=nonce, version="v", resources=(), removed=removed
    )


def test_equal_responses_are_encoded_once_and_a_limited_number_is_kept() -> None:
    cache = ResponseCache()
    assert cache.encode(response("e7.1", "gone")) is cache.encode(response("e7.1", "gone"))
    for number in range(2 * CACHED_RESPONSES):
        cache.encode(response(f"e8.{number}", "gone"))
    assert len(cache._encoded) == CACHED_RESPONSES


def test_made_up_names_are_not_kept() -> None:
    """A peer asks for names that do not exist, in one stream after another; the responses list them as removed."""
    cache = ResponseCache()
    for names in (
        [f"made-up-{number}" for number in range(9_999)],
        [f"{number:01024}" for number in range(MAX_REMOVED_BYTES // 1024)],
    ):
        for number in range(CACHED_RESPONSES):
            data = cache.encode(response(f"e7.{number}", *names))
            assert list(DeltaDiscoveryResponse.FromString(data).removed_resources) == names
    assert not cache._encoded


def test_removed_resources_of_a_push_are_shared() -> None:
    cache = ResponseCache()
    names = [f"pool-{number:03}" for number in range(MAX_REMOVED_BYTES // (NAME_BYTES + len("pool-000")))]
    assert len(names) > 500
    assert cache.encode(response("e7.1", *names)) is cache.encode(response("e7.1", *names))
