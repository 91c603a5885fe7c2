"""``-l`` selects rows as kubectl selects by labels."""

from typing import Any

import pytest

from command_line.selector import SelectorError, parse_selector

ROW: dict[str, Any] = {
    "name": "chat/e0",
    "pool": "chat",
    "health": "UNHEALTHY",
    "zone": "",
    "cut": True,
    "load": 2.0,
    "pools": ["chat", "batch"],
    "agent": None,
}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", True),
        ("pool=chat", True),
        ("pool==chat", True),
        ("pool = chat , cut=true", True),
        ("pool=other", False),
        ("pool!=other", True),
        ("health=unhealthy", True),
        ("name=chat/e0", True),
        ("load=2", True),
        ("pools=batch", True),
        ("pool in (chat, other)", True),
        ("pool in (a,b),cut", False),
        ("pool notin (a,b)", True),
        ("pool notin (chat)", False),
        ("cut", True),
        ("zone", False),
        ("!zone", True),
        ("!cut", False),
        ("agent!=x", True),
        ("missing=x", False),
        ("zone=", False),
    ],
)
def test_selector_selects_rows(text: str, selected: bool) -> None:
    assert parse_selector(text).matches(ROW) is selected


@pytest.mark.parametrize("text", ["=a", "a=b=c", "a in", "a in b", "a in ()", "a,,b", "a>1", "a in (b) c"])
def test_malformed_selector_is_refused(text: str) -> None:
    with pytest.raises(SelectorError):
        parse_selector(text)


def test_selector_names_its_fields() -> None:
    assert parse_selector("a=1,!b,c in (x),d").keys == {"a", "b", "c", "d"}
