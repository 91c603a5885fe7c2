"""Which encoded responses are shared and kept, and how many."""

import pytest

from xds_server.model.type_urls import ENDPOINT
from xds_server.wire.decode import DeltaDiscoveryResponse
from xds_server.xds import Response, ResponseCache, XdsVariant
from xds_server.xds.response_cache import CACHED_RESPONSES, LARGE_RESPONSES


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


def test_few_responses_about_made_up_names_are_kept() -> None:
    """A peer asks for names that do not exist, in one stream after another."""
    cache = ResponseCache()
    names = [f"made-up-{number}" for number in range(9_999)]
    for number in range(CACHED_RESPONSES):
        data = cache.encode(response(f"e7.{number}", *names))
        assert list(DeltaDiscoveryResponse.FromString(data).removed_resources) == names
    assert len(cache._large) == LARGE_RESPONSES
    assert not cache._encoded


@pytest.mark.parametrize("pools", [500, 10_000])
def test_removed_resources_of_a_push_are_shared(pools: int) -> None:
    cache = ResponseCache()
    names = [f"pool-{number:05}" for number in range(pools)]
    assert cache.encode(response("e7.1", *names)) is cache.encode(response("e7.1", *names))
