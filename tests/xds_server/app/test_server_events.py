"""Events reach every handler in order; an event without handlers does nothing."""

from xds_server.app.server_events import EventHandlers, ServerEvents


def test_event_handlers_are_called_in_order() -> None:
    calls: list[tuple[str, str]] = []
    event: EventHandlers[[str]] = EventHandlers()
    event("before any handler")
    event.add(lambda text: calls.append(("first", text)), lambda text: calls.append(("second", text)))
    event.add(lambda text: calls.append(("third", text)))
    event("raised")
    assert calls == [("first", "raised"), ("second", "raised"), ("third", "raised")]


def test_event_handlers_are_not_shared() -> None:
    one, other = ServerEvents(), ServerEvents()
    calls: list[str] = []
    one.round_requested.add(lambda: calls.append("round"))
    one.proxies_changed()
    other.round_requested()
    assert calls == []
    one.round_requested()
    assert calls == ["round"]
