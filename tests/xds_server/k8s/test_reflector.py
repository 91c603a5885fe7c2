"""Reflectors against an API server, and against a scripted one."""

# ruff: noqa: ARG002 - a fake has the parameters of the real one

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.cluster_double import Troubles
from tests.eventually import eventually
from xds_server.k8s.api_resources import PODS
from xds_server.k8s.kube_api import PAGE, ApiError, KubeApi, KubeObject, ListPage, ObjectSelector, WatchEvent
from xds_server.k8s.object_store import ObjectKey
from xds_server.k8s.reflector import Reflector, ReflectorHandlers
from xds_server.k8s.watch_backoff import ABSENT_ATTEMPTS, WatchBackoff, WatchBackoffPolicy, WatchState

LIMIT_S = 60.0
QUICK = WatchBackoffPolicy(first_s=0.005, most_s=0.02, slow_s=0.02)
PODS_OF_ALL = ObjectSelector(resource=PODS)
NO_HANDLERS: ReflectorHandlers[str] = ReflectorHandlers()


def name(item: KubeObject) -> str:
    return str(item["metadata"]["name"])


@asynccontextmanager
async def running(
    api: KubeApi,
    selector: ObjectSelector = PODS_OF_ALL,
    handlers: ReflectorHandlers[str] = NO_HANDLERS,
    **more: Any,
) -> AsyncIterator[Reflector[str]]:
    one = Reflector(api, selector, name, handlers, backoff=QUICK, rng=random.Random(0), **more)
    task = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class Scripted(KubeApi):
    """Scripted answers to lists and watches, then a hang; records the requests."""

    def __init__(self, *answers: ListPage | ApiError | list[WatchEvent | ApiError]) -> None:
        self.answers = deque(answers)
        self.asked: list[str] = []
        self.on_list: Callable[[], None] = lambda: None

    async def page(self, which: ObjectSelector, *, more: str = "", limit: int = PAGE) -> ListPage:
        self.asked.append(f"list {more or limit}")
        self.on_list()
        answer = await self._next()
        assert isinstance(answer, ListPage), f"a list was asked for, and {answer} was to come"
        return answer

    async def watch(
        self,
        which: ObjectSelector,
        resource_version: str,
        *,
        timeout_s: float,
        silent_s: float = 0,
        on_open: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[WatchEvent, None]:
        self.asked.append(f"watch {resource_version}")
        answer = await self._next()
        assert isinstance(answer, list), f"a watch was asked for, and {answer} was to come"
        on_open()
        for one in answer:
            if isinstance(one, ApiError):
                raise one
            yield one

    async def _next(self) -> ListPage | list[WatchEvent | ApiError]:
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.popleft()
        if isinstance(answer, ApiError):
            raise answer
        return answer


def listed(*names: str, version: str = "1", more: str = "") -> ListPage:
    return ListPage(items=tuple(pod(one) for one in names), resource_version=version, more=more)


def pod(one: str, version: str = "") -> KubeObject:
    return {"metadata": {"name": one, "namespace": "ns", "resourceVersion": version}}


def added(one: str, version: str) -> WatchEvent:
    return WatchEvent(type="ADDED", object=pod(one, version))


EXPIRED = ApiError(410, "Expired", "too old resource version")
EXPIRED_IN_A_WATCH = ApiError(0, "Expired", "as an ERROR event without a code")


async def asked(api: Scripted, expected: list[str], **more: Any) -> Reflector[str]:
    async with running(api, **more) as one:
        await eventually(lambda: len(api.asked) >= len(expected), f"{expected}, not {api.asked}", LIMIT_S)
        assert api.asked == expected
        return one


async def test_reflector_lists_then_watches_and_resumes_from_resource_version() -> None:
    api = Scripted(listed("a", more="next"), listed("b", version="5"), [added("c", "7")], [])
    one = await asked(api, ["list 500", "list next", "watch 5", "watch 7", "watch 7"])
    assert sorted(one.objects.values()) == ["a", "b", "c"]


@pytest.mark.parametrize("expired", [EXPIRED, EXPIRED_IN_A_WATCH])
async def test_expired_resource_version_relists(expired: ApiError) -> None:
    changes: list[frozenset[ObjectKey]] = []
    api = Scripted(listed("a", "b"), [added("c", "2"), expired], listed("b", "c", version="9"))
    one = await asked(
        api,
        ["list 500", "watch 1", "list 500", "watch 9"],
        handlers=ReflectorHandlers(on_change=lambda keys, _: changes.append(keys)),
    )
    assert sorted(one.objects.values()) == ["b", "c"]
    assert [sorted(key.name for key in keys) for keys in changes] == [["a", "b"], ["c"], ["a"]]


async def test_expired_continue_token_falls_back_to_a_full_list() -> None:
    api = Scripted(listed("a", more="next"), EXPIRED, listed("b"), [])
    one = await asked(api, ["list 500", "list next", "list 0", "watch 1", "watch 1"])
    assert list(one.objects.values()) == ["b"]


async def test_interrupted_pagination_leaves_no_stale_objects() -> None:
    away = ApiError(503, "ServiceUnavailable", "in a moment")
    api = Scripted(listed("a", "gone", more="next"), away, listed("a", more="next"), listed("b", version="5"))
    one = await asked(api, [f"list {PAGE}", "list next", f"list {PAGE}", "list next", "watch 5"])
    assert set(one.objects) == {ObjectKey("ns", "a"), ObjectKey("ns", "b")}


async def test_rewatch_at_the_end_of_a_wait_is_safe() -> None:
    one = Reflector(Scripted(), PODS_OF_ALL, name, NO_HANDLERS)
    async with one._until_cut(0.0):
        # Its timeout has passed, but the task that it ends has not run yet.
        asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(one.rewatch))
        await asyncio.Event().wait()
    one.rewatch()


async def test_malformed_watch_event_relists() -> None:
    api = Scripted(listed("a"), [ApiError(0, "Malformed", "not JSON")], listed("a", version="3"))
    await asked(api, ["list 500", "watch 1", "list 500", "watch 3"])


async def test_lost_api_server_keeps_objects_and_resource_version() -> None:
    now = 100.0
    lost = ApiError(0, "ClientConnectorError", "refused")
    api = Scripted(listed("a"), lost, lost, [added("b", "2")])
    states: list[WatchState] = []
    handlers: ReflectorHandlers[str] = ReflectorHandlers(on_state_change=lambda: states.append(one.state))
    async with running(api, handlers=handlers, clock=lambda: now) as one:
        await eventually(lambda: len(api.asked) >= 5, "asked again", LIMIT_S)
    assert api.asked == ["list 500", "watch 1", "watch 1", "watch 1", "watch 2"]
    assert WatchState.LOST in states
    assert sorted(one.objects.values()) == ["a", "b"]
    assert one.stale_s is None


async def test_staleness_counts_from_the_last_watch_event() -> None:
    now = 100.0
    api = Scripted(listed("a"), *([ApiError(0, "ClientConnectorError", "refused")] * 3))
    async with running(api, clock=lambda: now) as one:
        await eventually(lambda: one.state is WatchState.LOST, "lost", LIMIT_S)
        now = 107.0
        assert one.stale_s == 7.0
        assert not one.current


async def test_forbidden_optional_list_is_skipped_and_retried() -> None:
    api = Scripted(ApiError(403, "Forbidden", "nodes"), ApiError(403, "Forbidden", "nodes"), listed("a"))
    seen: list[tuple[WatchState, bool, float | None]] = []

    def note() -> None:
        seen.append((one.state, one.complete, one.stale_s))

    async with running(api, handlers=ReflectorHandlers(on_state_change=note), optional=True) as one:
        await eventually(lambda: list(one.objects.values()) == ["a"], "allowed at last", LIMIT_S)
    assert seen[0] == (WatchState.FORBIDDEN, True, None)
    assert one.state is WatchState.SYNCED


async def test_forbidden_required_list_is_retried() -> None:
    api = Scripted(*([ApiError(403, "Forbidden", "pods")] * 3), listed("a"))
    seen: list[tuple[WatchState, bool, bool]] = []

    def note() -> None:
        seen.append((one.state, one.complete, one.stale_s is not None))

    async with running(api, handlers=ReflectorHandlers(on_state_change=note)) as one:
        await eventually(lambda: one.complete, "complete", LIMIT_S)
    assert (WatchState.FORBIDDEN, False, True) in seen
    assert not [observed for observed in seen if observed[0] is WatchState.FORBIDDEN and observed[1]]


async def test_forbidden_list_keeps_stale_objects() -> None:
    api = Scripted(listed("a"), *([ApiError(403, "Forbidden", "pods")] * 50))
    async with running(api) as one:
        await eventually(lambda: one.state is WatchState.FORBIDDEN, "forbidden", LIMIT_S)
        assert list(one.objects.values()) == ["a"]
        assert one.stale_s is not None


async def test_missing_resource_is_believed_after_several_answers() -> None:
    absent = [ApiError(404, "NotFound", "the server could not find the requested resource")] * ABSENT_ATTEMPTS
    complete: list[int] = []
    api = Scripted(*absent, listed("a"))
    handlers: ReflectorHandlers[str] = ReflectorHandlers(
        on_state_change=lambda: complete.append(len(api.asked)) if one.complete else None
    )
    async with running(api, handlers=handlers) as one:
        await eventually(lambda: one.objects, "it is there after all", LIMIT_S)
    assert complete[0] == ABSENT_ATTEMPTS


async def test_broken_watch_resumes_from_its_resource_version() -> None:
    class Hanging(Scripted):
        async def watch(self, *args: Any, **more: Any) -> AsyncGenerator[WatchEvent, None]:
            async for event in super().watch(*args, **more):
                yield event
            await asyncio.Event().wait()

    api = Hanging(listed("a"), [added("b", "2")], [])
    async with running(api) as one:
        await eventually(lambda: len(one.objects) == 2, "the first watch", LIMIT_S)
        one.suspect("nothing answers")
        assert one.state is WatchState.LOST
        one.rewatch()
        await eventually(lambda: one.state is WatchState.SYNCED, "the second watch", LIMIT_S)
    assert api.asked == ["list 500", "watch 1", "watch 2"]


async def test_list_is_not_interrupted_by_a_relist_request() -> None:
    api = Scripted(listed("a"), [EXPIRED], listed("b"))
    async with running(api) as one:
        api.on_list = one.rewatch
        await eventually(lambda: list(one.objects.values()) == ["b"], "the second list", LIMIT_S)


def test_backoff_doubles_with_jitter_and_is_capped() -> None:
    backoff = WatchBackoff(WatchBackoffPolicy(first_s=1, most_s=8), random.Random(1))
    waits = [backoff.pause() for _ in range(12)]
    for wait_s, most_s in zip(waits, [1, 2, 4, *[8] * 9], strict=True):
        assert most_s / 2 <= wait_s <= most_s
    assert len(set(waits)) == len(waits)
    backoff.reset()
    assert backoff.pause() <= 1


def test_retry_after_overrides_backoff() -> None:
    backoff = WatchBackoff(QUICK, random.Random(1))
    assert backoff.after(ApiError(429, "TooManyRequests", "", retry_after_s=3.0)) == (WatchState.LOST, 3.0)


async def test_reflector_reads_several_pages(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xds_server.k8s.reflector.PAGE", 3)
    for number in range(8):
        await cluster.pod(f"p{number}", labels={"odd": str(number % 2)})
    which = ObjectSelector(resource=PODS, namespace="default", labels="odd=1")
    async with running(cluster.api, which) as odd, running(cluster.api) as all_of_them:
        odd._page = all_of_them._page = 3
        await eventually(lambda: len(all_of_them.objects) == 8, "all", LIMIT_S)
        assert sorted(odd.objects.values()) == ["p1", "p3", "p5", "p7"]
        await cluster.api.merge(PODS, "default", "p1", {"metadata": {"labels": {"odd": "0"}}})
        await eventually(lambda: "p1" not in odd.objects.values(), "no longer selected", LIMIT_S)
        assert "p1" in all_of_them.objects.values()


async def test_broken_watches_and_api_errors_lose_no_event(cluster: Cluster) -> None:
    double = cluster.must_be_double("it fails, forgets and sends bookmarks on order")
    async with running(cluster.api) as one:
        await eventually(lambda: one.complete and double.watches, "the watch", LIMIT_S)
        for number in range(4):
            double.trouble(Troubles(failing=1, only="/pods") if number % 2 else Troubles(too_many=0))
            double.reset_watches()
            double.trouble(Troubles())
            await cluster.pod(f"p{number}")
        await eventually(lambda: len(one.objects) == 4, "all", LIMIT_S)
        double.bookmark()
        await cluster.api.delete(PODS, "default", "p0")
        double.expire()
        double.reset_watches()
        await cluster.pod("p9")
        await eventually(lambda: "p9" in one.objects.values(), "the new list", LIMIT_S)
