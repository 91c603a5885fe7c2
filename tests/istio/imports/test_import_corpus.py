"""Upstream's own files: what each one is imported as, and that no field of them is dropped silently.

The files stand outside of the repository, in ``../shared/data/import-corpus``; without them the tests are skipped.
Their results are in ``tests/data/import-corpus``: policies and remarks. ``--update-golden`` rewrites them.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from istio.imports.draft_validation import ImportResult
from istio.imports.from_inferencepool import from_inferencepool
from istio.imports.from_istio import from_istio
from istio.imports.from_production_stack import from_production_stack
from istio.imports.policy_drafts import ImportOptions
from istio.imports.source_documents import SourceDocument, SourceNode, source_documents
from policies.findings import PolicyErrors
from policies.origin import Step
from policies.yaml_text import Value

ROOT: Final = Path(__file__).resolve().parents[3]
CORPUS: Final = ROOT.parent / "shared" / "data" / "import-corpus"
GOLDEN: Final = ROOT / "tests" / "data" / "import-corpus"
FILES: Final = sorted(str(path.relative_to(CORPUS)) for path in CORPUS.rglob("*.yaml"))

Translate = Callable[[Sequence[SourceDocument]], ImportResult]
OPTIONS: Final = ImportOptions()
IMPORTS: Final[dict[str, Translate]] = {
    "istio": lambda sources: from_istio(sources, OPTIONS),
    "ps": lambda sources: from_production_stack(sources, OPTIONS, "vllm"),
    "psgw": lambda sources: from_inferencepool(sources, OPTIONS),
    "gaie": lambda sources: from_inferencepool(sources, OPTIONS),
    "gwapi": lambda sources: from_inferencepool(sources, OPTIONS),
}
"""The import of each folder's files."""

HEADS: Final = frozenset({"apiVersion", "metadata", "status"})
"""Fields of an object that are not listed: the version, names, and what controllers reported."""

needs_corpus = pytest.mark.skipif(not FILES, reason="no upstream files: import-corpus belongs into ../shared/data")


@pytest.fixture(autouse=True)
def _relative_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    if CORPUS.exists():
        monkeypatch.chdir(CORPUS)


def translation(file: str) -> Translate:
    return IMPORTS[file.partition("/")[0]]


def golden(file: str) -> Path:
    return GOLDEN / Path(file).with_suffix(".txt")


def outcome(file: str) -> str:
    """The policies and the remarks, or why the file cannot be read."""
    try:
        result = translation(file)(source_documents([file], "source"))
    except PolicyErrors as errors:
        return "".join(f"{one}\n" for one in errors.exceptions)
    remarks = "".join(f"{one}\n" for one in result.remarks)
    return f"{result.text or 'no policy'}\n--- remarks\n{remarks}"


@needs_corpus
@pytest.mark.parametrize("file", FILES)
def test_upstream_file_is_imported_as_recorded(file: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        golden(file).parent.mkdir(parents=True, exist_ok=True)
        golden(file).write_text(outcome(file))
    assert outcome(file) == golden(file).read_text()


@needs_corpus
def test_each_result_has_its_file() -> None:
    assert sorted(str(path.relative_to(GOLDEN).with_suffix(".yaml")) for path in GOLDEN.rglob("*.txt")) == FILES


def leaves(value: Value, steps: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    """The innermost fields that have a value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, (*steps, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, (*steps, number))
    elif value is not None:
        yield steps


def with_leaf(value: Value, steps: tuple[Step, ...], *, removed: bool) -> Value:
    """The document with another value there, or without the field."""
    changed = copy.deepcopy(value)
    into: Any = changed
    for step in steps[:-1]:
        into = into[step]
    old = into[steps[-1]]
    if removed:
        del into[steps[-1]]
    elif isinstance(old, bool):
        into[steps[-1]] = not old
    else:
        into[steps[-1]] = old + 1 if isinstance(old, int | float) else f"other{old}"
    return changed


def fresh(sources: Sequence[SourceDocument], values: dict[int, Value]) -> tuple[SourceDocument, ...]:
    """The documents before an import took anything from them, some with another value."""
    return tuple(
        SourceDocument(file=one.file, value=values.get(number, one.value), places=one.places)
        for number, one in enumerate(sources)
    )


def shown(translate: Translate, sources: Sequence[SourceDocument]) -> object:
    """All that a reader sees of an import."""
    result = translate(sources)
    return result.text, [(one.document, one.path, one.value, one.why) for one in result.remarks]


def is_name(steps: tuple[Step, ...]) -> bool:
    """Whether it names a port for other fields of the same object."""
    return len(steps) == 4 and steps[:2] == ("spec", "ports") and steps[3] == "name"


def dropped(translate: Translate, file: str) -> Iterator[tuple[Step, ...]]:
    """Fields that no remark covers, and that change nothing when they have another value or are missing."""
    sources = source_documents([file], "source")
    read = fresh(sources, {})
    before = shown(translate, read)
    for number, source in enumerate(sources):
        for steps in leaves(source.value):
            if not steps or steps[0] in HEADS or is_name(steps) or read[number].listed(steps):
                continue
            edits = [False, True] if isinstance(steps[-1], str) else [False]
            values = [with_leaf(source.value, steps, removed=removed) for removed in edits]
            if all(shown(translate, fresh(sources, {number: value})) == before for value in values):
                yield steps


@needs_corpus
@pytest.mark.parametrize("file", FILES)
def test_no_field_of_an_upstream_file_is_dropped_silently(file: str) -> None:
    assert not list(dropped(translation(file), file))


def test_field_that_is_taken_without_effect_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("servingEngineSpec: {runtimeClassName: nvidia, modelSpec: [{name: m, tag: v1, odd: 1}]}\n")
    assert not list(dropped(IMPORTS["ps"], str(path)))
    monkeypatch.setattr(SourceNode, "leave", lambda node, _why: node.take())
    assert list(dropped(IMPORTS["ps"], str(path))) == [
        ("servingEngineSpec", "runtimeClassName"),
        ("servingEngineSpec", "modelSpec", 0, "tag"),
    ]
