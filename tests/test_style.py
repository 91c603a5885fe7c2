"""Plain English: no text of the product or its documentation contains a banned phrase (docs/style.md).

``python tests/test_style.py [PATH ...]`` lists what it finds below these paths, with what to write instead.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
PHRASES: Final = Path(__file__).with_name("banned_phrases.txt")
EXCLUDED: Final = (
    "tests/banned_phrases.txt",
    "tests/test_style.py",
    # Recorded from other programs, or fuzz input.
    "tests/data/",
    "tests/fuzz/corpus/",
    "LICENSE",
    "docs/licences.md",
    # Its table shows what not to write.
    "docs/style.md",
)
PROSE: Final = {
    ".md",
    ".yaml",
    ".yml",
    ".toml",
    ".html",
    ".css",
    ".js",
    ".svg",
    ".txt",
    ".tpl",
    ".json",
    ".sh",
    ".proto",
}
PROSE_NAMES: Final = {"Makefile", "Dockerfile", "run"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """One banned phrase, and what to write instead."""

    pattern: re.Pattern[str]
    better: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """Where a banned phrase stands; ``line`` counts from 1."""

    path: str
    line: int
    text: str
    better: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}: {self.better}"


def banned_phrases() -> list[Phrase]:
    """The list, in the order of the file."""
    lines = [line for line in PHRASES.read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.split("\t") for line in lines]
    return [Phrase(pattern=re.compile(p.replace(" ", r"[\s#*]+"), re.IGNORECASE), better=b) for p, b in pairs]


def python_prose(source: str) -> Iterator[tuple[int, str]]:
    """Comments, string literals and names of tests in Python source, each with its first line."""
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if comments and comments[-1][0] + comments[-1][1].count("\n") == line - 1:
                comments[-1] = (comments[-1][0], f"{comments[-1][1]}\n{token.string}")
            else:
                comments.append((line, token.string))
    yield from comments
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if not node.value.isidentifier():  # names of parameters and keys are not prose
                yield node.lineno, node.value
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")


def prose(path: str, text: str) -> Iterator[tuple[int, str]]:
    """The parts of a file that people read, each with its first line."""
    if path.endswith(".py"):
        yield from python_prose(text)
    elif Path(path).suffix in PROSE or Path(path).name in PROSE_NAMES:
        yield 1, text


def banned_in(path: str, text: str, phrases: list[Phrase]) -> Iterator[Hit]:
    """Every banned phrase of one file."""
    for first, part in prose(path, text):
        for phrase in phrases:
            for found in phrase.pattern.finditer(part):
                line = first + part.count("\n", 0, found.start())
                yield Hit(path=path, line=line, text=" ".join(found[0].split()), better=phrase.better)


def checked_files(*below: str) -> list[str]:
    """Files under version control that are ours, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *below], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for path in listed.stdout.split("\0") if path and not path.startswith(EXCLUDED)]


def hits(*below: str) -> list[Hit]:
    """Every banned phrase below these paths."""
    phrases = banned_phrases()
    found = []
    for path in checked_files(*below):
        try:
            text = (ROOT / path).read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        found += sorted(banned_in(path, text, phrases), key=lambda hit: hit.line)
    return found


def test_product_and_docs_have_no_banned_phrase() -> None:
    found = hits()
    assert not found, f"{len(found)} banned phrases; docs/style.md says how to write\n" + "\n".join(
        map(str, found[:40])
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "# Whoever\n"),
        ("a.py", "# for\n# ever\n"),
        ("a.py", '"""It is\n    told."""\n'),
        ("a.py", 'x = f"{y} was said"\n'),
        ("a.py", "def test_nobody_listens(): pass\n"),
        ("a.md", "Mend\nthe line.\n"),
        ("a.yaml", "help: a way out\n"),
    ],
)
def test_a_banned_phrase_is_found_in_each_kind_of_text(path: str, text: str) -> None:
    assert [*banned_in(path, text, banned_phrases())]


def test_locals_are_not_prose() -> None:
    assert not [*banned_in("a.py", "said = told = 1\n", banned_phrases())]


def test_single_words_in_strings_are_names_and_not_prose() -> None:
    assert not [*banned_in("a.py", 'x["said"]\n', banned_phrases())]
    assert [*banned_in("a.py", 'x("said so")\n', banned_phrases())]


if __name__ == "__main__":
    listed = hits(*sys.argv[1:])
    sys.stdout.writelines(f"{hit}\n" for hit in listed)
    sys.exit(f"{len(listed)} banned phrases" if listed else 0)
