"""Whatever the bytes are: a policy set or policy errors, and no surprise."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.findings import PolicyError, PolicyErrors
from policies.lints.lint import lint
from policies.load import load
from policies.model import PolicySet
from policies.yaml_text import parse

EXAMPLES = Path(__file__).parents[2] / "policies" / "examples"
TEXTS = [path.read_text() for path in sorted(EXAMPLES.glob("*.yaml"))]
FLAGSHIP = (EXAMPLES / "flagship-with-fallback.yaml").read_text()

PIECES = [
    "---\n", "\t", ": ", "- ", "[", "]", "{", "}", "&a ", "*a", "<<: *a", "!!int ", "'", '"', "#", "|", ">", "?",
    "\n", "~", "null", "no", "yes", "0", "-1", "1e999", ".nan", ".inf", "9" * 400, "spec", "kind", "metadata",
    "endpoints", "max_wait", "250ms", "0s", "-5s", "1000000h", "\x00", "\x7f", "\ufeff", "é", "\U0001f600",
    "\u2028", "%YAML 1.1\n",
]  # fmt: skip

FAST = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def judged(path: Path, content: bytes) -> PolicySet | PolicyErrors:
    path.write_bytes(content)
    try:
        policies = load([path])
    except PolicyErrors as errors:
        return sane(errors)
    lint(policies)
    return policies


def sane(errors: PolicyErrors) -> PolicyErrors:
    assert errors.exceptions
    for error in errors.exceptions:
        assert isinstance(error, PolicyError)
        assert error.code < "SG1"
        assert error.message
        assert "\n" not in str(error)
    return errors


@FAST
@given(content=st.binary(max_size=300))
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    judged(tmp_path / "a.yaml", content)


@FAST
@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=40).map("".join))
def test_any_text(tmp_path: Path, text: str) -> None:
    judged(tmp_path / "a.yaml", text.encode("utf-8", "surrogatepass"))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A valid file with a few pieces cut out, doubled, or replaced."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 30)))
        middle = draw(st.sampled_from(PIECES) | st.just(text[begin:end] * 2) | st.text(max_size=8))
        text = text[:begin] + middle + text[end:]
    return text


@FAST
@given(text=mutated())
def test_any_slip_of_the_hand(tmp_path: Path, text: str) -> None:
    judged(tmp_path / "a.yaml", text.encode("utf-8", "surrogatepass"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def leaves(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, number))


@FAST
@given(data=st.data())
def test_any_value_in_any_field(tmp_path: Path, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS))
    documents: list[Any] = [document.value for document in parse(text).documents]
    path = data.draw(st.sampled_from([path for path in leaves(documents) if path]))
    holder: Any = documents
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = data.draw(VALUES)
    content = "\n---\n".join(json.dumps(one) for one in documents)
    judged(tmp_path / "a.json", content.encode())


@pytest.mark.parametrize("name", ["\n", "\x1b[2J", "\u2028", "x" * 100_000, "a\ud800"])
def test_names_stay_on_one_short_line(tmp_path: Path, name: str) -> None:
    for place in ("kind", "metadata", "spec"):
        documents: list[Any] = [one.value for one in parse(FLAGSHIP).documents]
        documents[0][place] = {**documents[0]["spec"], name: 1} if place == "spec" else {"name": name, name: name}
        documents[1]["metadata"]["name"] = documents[3]["metadata"]["name"] = name
        documents[2]["spec"]["fallbacks"] = [name]
        content = "\n---\n".join(json.dumps(one, ensure_ascii="\ud800" in name) for one in documents)
        errors = judged(tmp_path / "a.yaml", content.encode())
        assert isinstance(errors, PolicyErrors)
        assert all(str(error).isprintable() and len(str(error)) < 2000 for error in errors.exceptions)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_examples_are_valid_to_begin_with(tmp_path: Path, text: str) -> None:
    assert isinstance(judged(tmp_path / "a.yaml", text.encode()), PolicySet)
