"""What an engine says of its models: which of them are adapters."""

from typing import Any

import pytest

from engine.adapter_list import MAX_ADAPTERS, adapter_names
from engine.engine_readings import ProbeFailure, ProbeFailureReason

BASE = {"id": "base", "object": "model", "parent": None, "root": "/models/base"}


def adapter(name: Any) -> dict[str, Any]:
    return {"id": name, "object": "model", "parent": "base", "root": "/adapters"}


@pytest.mark.parametrize(
    ("models", "names"),
    [
        ([BASE], ()),
        ([BASE, adapter("sql"), adapter("chat")], ("chat", "sql")),
        ([BASE, adapter("sql"), adapter("sql")], ("sql",)),
        ([{"id": "other", "object": "model"}], ()),
        ([adapter(""), adapter(7), adapter("a\nb"), adapter("x" * 254), "sql", None], ()),
        ([], ()),
    ],
)
def test_models_with_a_parent_are_adapters(models: list[Any], names: tuple[str, ...]) -> None:
    assert adapter_names({"object": "list", "data": models}) == names


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {"data": None}, "sql", ProbeFailure(trouble=ProbeFailureReason.STATUS, status=401, detail="")],
)
def test_other_answers_say_nothing_of_adapters(answer: Any) -> None:
    assert adapter_names(answer) is None


def test_names_are_bounded() -> None:
    many = adapter_names({"data": [adapter(f"a{number}") for number in range(2 * MAX_ADAPTERS)]})
    assert many is not None
    assert len(many) == MAX_ADAPTERS
