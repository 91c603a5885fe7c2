"""Peers without any resource of a type share what they are sent; all others get exactly what they lack."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.model.snapshot import Snapshot, resource, set_version, snapshot
from xds_server.model.type_urls import ENDPOINT, LISTENER
from xds_server.xds import DeltaRequest, NodeInfo, Response, SharedContent, Stream, XdsVariant

NAMES = [f"e{number}" for number in (3, 1, 4, 0, 5, 2)]


def served(version: str = "one", type_url: str = LISTENER) -> Snapshot:
    return snapshot(resource(type_url, name, f"{name} {version}".encode()) for name in NAMES)


def stream(shared: SharedContent, content: Snapshot) -> Stream:
    return Stream(XdsVariant.DELTA, NodeInfo(id="n"), content, sequence=1, now_s=0.0, shared=shared)


def ask(one: Stream, type_url: str = LISTENER, **request: object) -> Response:
    one.request(DeltaRequest(type_url=type_url, **request), 0.0)  # type: ignore[arg-type]
    (response,) = one.due(0.0)
    return response


def pairs(response: Response) -> list[tuple[str, bytes]]:
    return [(item.name, item.value) for item in response.resources]


def test_peers_without_anything_share_all_of_it_in_order() -> None:
    shared, content = SharedContent(), served()
    first, second = (ask(stream(shared, content)) for _ in range(2))
    assert first.resources is second.resources
    assert pairs(first) == [(name, f"{name} one".encode()) for name in sorted(NAMES)]
    assert first.version == set_version(first.resources)


def test_named_resources_are_shared_if_they_are_all_there_are() -> None:
    shared, content = SharedContent(), served(type_url=ENDPOINT)
    first, second = (ask(stream(shared, content), ENDPOINT, subscribe=tuple(NAMES)) for _ in range(2))
    assert first.resources is second.resources
    some = ask(stream(shared, content), ENDPOINT, subscribe=tuple(NAMES[:5]))
    assert {item.name for item in some.resources} == set(NAMES[:5])
    more = ask(stream(shared, content), ENDPOINT, subscribe=(*NAMES, "missing"))
    assert {item.name for item in more.resources} == set(NAMES)


@pytest.mark.parametrize("error", [None, "bad e1"])
def test_after_the_answer_only_changes_follow(error: str | None) -> None:
    one = stream(SharedContent(), served())
    response = ask(one)
    one.request(DeltaRequest(type_url=LISTENER, nonce=response.nonce, error=error), 0.0)
    assert not one.due(0.0), "a refusal alone draws no response"
    changed = snapshot([*served().of(LISTENER).values(), resource(LISTENER, "e1", b"e1 two")])
    one.offer(changed, 2)
    (response,) = one.due(0.0)
    assert ("e1", b"e1 two") in pairs(response)
    assert error or len(response.resources) == 1


@given(st.dictionaries(st.sampled_from([*NAMES, "gone"]), st.sampled_from(["current", "older"])))
def test_a_peer_that_holds_some_is_sent_the_others(held: dict[str, str]) -> None:
    content = served()
    current = {name: item.version for name, item in content.of(LISTENER).items()}
    versions = {name: current.get(name, "x") if one == "current" else "older" for name, one in held.items()}
    one = stream(SharedContent(), content)
    ask(stream(SharedContent(), content))
    one.request(DeltaRequest(type_url=LISTENER, initial_versions=versions), 0.0)
    due = [item for response in one.due(0.0) for item in response.resources]
    assert [item.name for item in due] == sorted(name for name in NAMES if held.get(name) != "current")
