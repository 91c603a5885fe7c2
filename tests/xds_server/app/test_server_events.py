"""Events reach every handler in order; a part that raises one before it has handlers does no harm."""

from xds_server.app.server_events import EventHandlers, ServerEvents


def test_handlers_are_called_in_the_order_in_which_they_were_added() -> None:
    calls: list[tuple[str, str]] = []
    event: EventHandlers[[str]] = EventHandlers()
    event("before any handler")
    event.add(lambda text: calls.append(("first", text)), lambda text: calls.append(("second", text)))
    event.add(lambda text: calls.append(("third", text)))
    event("raised")
    assert calls == [("first", "raised"), ("second", "raised"), ("third", "raised")]


def test_each_server_and_each_event_has_handlers_of_its_own() -> None:
    one, other = ServerEvents(), ServerEvents()
    calls: list[str] = []
    one.round_requested.add(lambda: calls.append("round"))
    one.proxies_changed()
    other.round_requested()
    assert calls == []
    one.round_requested()
    assert calls == ["round"]
