"""Names of the product: public classes are unique, no name has an everyday word, each standard term has a home."""

from pathlib import Path
from typing import Final

import pytest

from benchmarks.source_tree import (
    ROOT,
    STANDARD_TERMS,
    PublicName,
    homes,
    import_shape,
    name_parts,
    public_names,
    reused_classes,
)

ALLOWED: Final = Path(__file__).with_name("allowed_names.txt")
FORBIDDEN: Final = {
    *(
        "about",
        "around",
        "ask",
        "asked",
        "beside",
        "book",
        "common",
        "crowd",
        "desk",
        "door",
        "fate",
        "given",
        "hear",
    ),
    *("heard", "helper", "helpers", "intake", "look", "manager", "mend", "misc", "onlooker", "patience", "roll"),
    *(
        "roster",
        "said",
        "say",
        "says",
        "scene",
        "seen",
        "sitting",
        "somebody",
        "stand",
        "standing",
        "stands",
        "tell",
    ),
    *("telling", "tellings", "tells", "told", "trouble", "troubles", "util", "utils", "whoever", "wish", "word"),
    *("words",),
}
"""Everyday words and grab-bags: they hide the concept from a reader who searches for it."""


def forbidden_names(names: list[PublicName]) -> dict[str, str]:
    """Public names with a forbidden part, by that name; the value says where each stands."""
    return {one.name: f"{one.kind} in {one.path}" for one in names if FORBIDDEN & {*name_parts(one.name)}}


def allowed_names() -> set[str]:
    """Names of the allow-list; a reason follows each."""
    lines = (line.partition("#")[0].strip() for line in ALLOWED.read_text().splitlines())
    return {line for line in lines if line}


@pytest.fixture(scope="module")
def names() -> list[PublicName]:
    return list(public_names())


def test_each_public_class_name_exists_once(names: list[PublicName]) -> None:
    assert reused_classes(names) == {}


def test_no_public_name_has_a_forbidden_part(names: list[PublicName]) -> None:
    allowed = allowed_names()
    assert {name: place for name, place in forbidden_names(names).items() if name not in allowed} == {}


def test_the_allow_list_only_shrinks(names: list[PublicName]) -> None:
    assert allowed_names() - {*forbidden_names(names)} == set(), "remove these from tests/allowed_names.txt"
    assert len(allowed_names()) <= 1, "rename instead of adding to tests/allowed_names.txt"


@pytest.mark.parametrize("term", STANDARD_TERMS)
def test_each_standard_term_has_a_home(names: list[PublicName], term: str) -> None:
    assert homes(term, names)


def test_each_standard_term_is_in_the_glossary() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text().lower()
    assert [term for term in STANDARD_TERMS if f"| **{term}" not in page] == []


def test_the_control_plane_has_at_most_26_rooms() -> None:
    assert import_shape().rooms <= 26


def test_names_are_split_at_their_parts() -> None:
    made = [
        PublicName(kind="class", name="NACKPolicy", path="a.py"),
        PublicName(kind="function", name="rate_limit_of", path="b.py"),
        PublicName(kind="method", name="is_told", path="c.py:C"),
        PublicName(kind="class", name="Passwords", path="d.py"),
    ]
    assert [name_parts(one.name) for one in made[:2]] == [("nack", "policy"), ("rate", "limit", "of")]
    assert homes("nack", made) == ["a.py:NACKPolicy"]
    assert homes("rate limit", made) == ["b.py:rate_limit_of"]
    assert homes("limit rate", made) == []
    assert forbidden_names(made) == {"is_told": "method in c.py:C"}


def test_a_name_that_two_classes_share_is_found() -> None:
    made = [PublicName(kind="class", name="Stream", path=path) for path in ("a.py", "b.py")]
    assert reused_classes(made) == {"Stream": ["a.py", "b.py"]}
