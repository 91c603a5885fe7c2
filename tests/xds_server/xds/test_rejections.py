"""Rejections of a peer: their scope and end."""

from xds_server.model.snapshot import Resource, resource
from xds_server.model.type_urls import SECRET
from xds_server.xds.rejections import Rejections


def secret(name: str, content: str) -> Resource:
    return resource(SECRET, name, content.encode())


def nacked(before: Rejections, *items: Resource, fallbacks_of: tuple[str, ...] = ()) -> Rejections:
    return before.nacked(items, fallbacks_of=fallbacks_of, removals=(), reason="no", now_s=7.0)


BAD, OTHER = secret("a", "bad"), secret("b", "bad")


def test_a_nacked_version_is_rejected_and_no_other() -> None:
    found = nacked(Rejections(), BAD)
    assert found.has_rejected(BAD)
    assert not found.has_rejected(secret("a", "better"))
    assert (found.reason, found.nacked_at_s) == ("no", 7.0)
    assert not Rejections().has_rejected(BAD), "each is a value of its own"


def test_nacked_fallback_keeps_the_original_rejection() -> None:
    fallback = secret("a", "before")
    found = nacked(nacked(Rejections(), BAD), fallback, fallbacks_of=("a",))
    assert found.has_rejected(BAD)
    assert found.has_rejected(fallback)
    assert found.versions == {"a": BAD.version}
    assert found.cleared([("a", BAD.version)]).has_rejected(fallback)
    assert not found.cleared([("a", fallback.version)]).has_rejected(fallback)
    ended = found.superseded(["a"])
    assert not ended.has_rejected(BAD)
    assert not ended.has_rejected(fallback)


def test_a_rejection_is_current_while_its_version_is_wanted_or_rolled_back() -> None:
    found = nacked(Rejections(), BAD, OTHER)
    better = {"a": secret("a", "better"), "b": OTHER}
    assert found.current(better, ()) == {"b": OTHER.version}
    assert found.current(better, {"a"}) == {"a": BAD.version, "b": OTHER.version}


def test_rejections_of_dropped_names_are_forgotten() -> None:
    found = nacked(nacked(Rejections(), BAD, OTHER), secret("a", "before"), fallbacks_of=("a",))
    kept = found.retained(lambda name: name == "b")
    assert (kept.versions, kept.fallbacks) == ({"b": OTHER.version}, frozenset())


def test_rejected_removals_add_up_until_they_are_repeated() -> None:
    found = Rejections()
    for name in "ab":
        found = found.nacked((), fallbacks_of=(), removals=(name,), reason="no", now_s=0.0)
    assert found.removals == {"a", "b"}
    assert not found.without_removals().removals
