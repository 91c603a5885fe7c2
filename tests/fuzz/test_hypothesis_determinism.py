"""What property tests draw is the same in each run, whatever else ran before in the same process."""

import sys
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
from hypothesis import strategies as st


def drawn() -> list[tuple[int, str]]:
    """Everything that a property is tried with."""
    found: list[tuple[int, str]] = []

    @hypothesis.settings(max_examples=300)
    @hypothesis.given(st.integers(), st.text())
    def tried(whole: int, text: str) -> None:
        found.append((whole, text))

    tried()
    return found


@pytest.mark.skipif(not hypothesis.settings.default.derandomize, reason="other seeds were asked for")
def test_hypothesis_draws_are_deterministic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = drawn()
    assert len(set(first)) > 100
    later = ModuleType("imported_later")
    later.__file__ = str(tmp_path / "imported_later.py")
    (tmp_path / "imported_later.py").write_text("".join(f"{n} == 'word {n}'\n" for n in range(7_000, 7_100)))
    monkeypatch.setitem(sys.modules, later.__name__, later)
    assert drawn() == first
