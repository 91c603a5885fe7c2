"""What a text means, and how it fails."""

import math

import pytest

from policies.origin import line_of
from policies.yaml_text import MAX_DEPTH, MAX_PROBLEMS, Value, parse, resolved


def value(text: str) -> Value:
    parsed = parse(text)
    assert parsed.problems == ()
    (document,) = parsed.documents
    return document.value


def codes(text: str) -> list[tuple[str, int]]:
    return [(one.code, line_of(one.at)) for one in parse(text).problems]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("no", "no"), ("on", "on"), ("Yes", "Yes"), ("y", "y"),  # text since YAML 1.2
        ("true", True), ("False", False), ("TRUE", True), ("~", None), ("null", None),
        ("7", 7), ("-7", -7), ("+7", 7), ("0", 0), ("0o17", 15), ("0x1f", 31),
        ("010", "010"), ("1_000", "1_000"), ("1:30", "1:30"), ("2001-01-01", "2001-01-01"),
        ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("1.", 1.0), ("00.5", "00.5"), (".inf", math.inf),
        ("1.2.3", "1.2.3"), ("10.0.0.1", "10.0.0.1"), ("-", "-"), ("9" * 5000, "9" * 5000), ("250ms", "250ms"),
    ],
)  # fmt: skip
def test_scalars_mean_what_yaml_1_2_says(text: str, meant: object) -> None:
    found = resolved(text)
    assert found == meant
    assert type(found) is type(meant)


def test_not_a_number_is_a_number_for_yaml() -> None:
    found = resolved(".nan")
    assert isinstance(found, float)
    assert math.isnan(found)


def test_quotes_and_tags_make_text_and_numbers() -> None:
    assert value('{a: "7", b: !!str 7, c: !!int "7", d: !!float 7, e: ! 7, f: !!null ~}') == {
        "a": "7", "b": "7", "c": 7, "d": 7, "e": "7", "f": None,
    }  # fmt: skip


def test_json_is_yaml() -> None:
    assert value('{"a": [1, 2.5, true, null, "x\\u00e9"],\n\t"b": {}}') == {
        "a": [1, 2.5, True, None, "xé"],
        "b": {},
    }


def test_merge_keys() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 3}\nd: {x: 4, <<: *a}\n"
    merged = value(text)
    assert isinstance(merged, dict)
    assert merged["c"] == {"x": 3, "y": 1, "z": 2}
    assert merged["d"] == {"x": 4, "y": 1}
    assert value('{"<<": 3}') == {"<<": 3}  # in quotes it is a name like any other


def test_aliases_repeat() -> None:
    assert value("a: &a [1]\nb: *a\nc: &c x\n*c : y\n") == {"a": [1], "b": [1], "c": "x", "x": "y"}


def test_anchors_end_with_their_document() -> None:
    assert codes("a: &a 1\n---\nb: *a\n") == [("SG015", 3)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: [1\n", [("SG011", 2)]),
        ("a: 'b\n", [("SG011", 2)]),
        ("a: b: c\n", [("SG011", 1)]),
        ("a: @b\n", [("SG011", 1)]),
        ("a: \x07\n", [("SG011", 1)]),
        ("\x00", [("SG011", 1)]),
        ("a:\n\tb: c\n", [("SG012", 2)]),
        ("a:\n  b: 1\n\tc: 2\n", [("SG012", 3)]),
        ("a: 1\nb: 2\na: 3\n", [("SG013", 3)]),
        ("1: 2\n", [("SG014", 1)]),
        ("true: 2\n", [("SG014", 1)]),
        ("? [a, b]\n: 2\n", [("SG014", 1)]),
        ("a: &a [*a]\n", [("SG015", 1)]),
        ("a: *missing\n", [("SG015", 1)]),
        ("a: !!python/object:os.system x\n", [("SG017", 1)]),
        ("a: !!binary aGk=\n", [("SG017", 1)]),
        ("a: !!int x\n", [("SG017", 1)]),
        ("a: !!set {}\n", [("SG017", 1)]),
        ("<<: 7\n", [("SG018", 1)]),
        ("<<: [7]\n", [("SG018", 1)]),
    ],
)
def test_refusals(text: str, found: list[tuple[str, int]]) -> None:
    assert codes(text) == found


def test_a_broken_document_does_not_hide_the_next() -> None:
    parsed = parse("a: [1\n---\nb: 1\nb: 2\n---\n'c\n---\nd: 1\n")
    assert [(one.code, line_of(one.at)) for one in parsed.problems] == [("SG011", 2), ("SG013", 4), ("SG011", 7)]
    assert [one.value for one in parsed.documents] == [{"b": 1}, {"d": 1}]
    assert parsed.broken


def bomb(levels: int) -> str:
    """A billion laughs: each level repeats the one below nine times."""
    lines = ["a0: &a0 ha"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("text", [bomb(40), "a: &a " + "x" * 1_000_000 + "\nb: [" + "*a, " * 100_000 + "]"])
def test_aliases_that_explode_are_refused_at_once(text: str) -> None:
    assert [code for code, _ in codes(text)] == ["SG015"]


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "{a: " * 200_000, "- " * 200_000, "? " * 200_000, "a: " + "[{b: " * 500]
)
def test_depth_is_refused_at_once(text: str) -> None:
    assert "SG016" in [code for code, _ in codes(text)]


def test_the_depth_that_is_allowed() -> None:
    assert codes("[" * MAX_DEPTH + "]" * MAX_DEPTH) == []
    assert [code for code, _ in codes("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))] == ["SG016"]


def test_problems_of_one_text_are_bounded() -> None:
    assert len(parse("1: 2\n" * 5000).problems) == MAX_PROBLEMS
    assert len(parse("a: b: c\n---\n" * 5000).problems) == MAX_PROBLEMS
