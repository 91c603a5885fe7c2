"""docs/decisions.md names every decision module, and every field that bounds one."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from policies.resilience import (
    Breaker,
    Degradation,
    Hedging,
    Limits,
    RetryBudget,
    SlowStart,
    Straggler,
    Timeouts,
    Zones,
)

ROOT = Path(__file__).parents[3]
DOC = (ROOT / "docs" / "decisions.md").read_text()
NAMED = set(re.findall(r"`([A-Za-z_.]+)", DOC))
BLOCKS: dict[str, type[BaseModel]] = {
    "breaker": Breaker,
    "straggler": Straggler,
    "limits": Limits,
    "retryBudget": RetryBudget,
    "hedging": Hedging,
    "timeouts": Timeouts,
    "slowStart": SlowStart,
    "zones": Zones,
    "degradation": Degradation,
}


def fields(path: str, model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner, own = field.annotation, f"{path}.{field.alias or name}"
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from fields(own, inner)
        else:
            yield own


def modules() -> list[str]:
    return sorted(path.stem for path in (ROOT / "xds_server" / "decide").rglob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("path", [one for block, model in BLOCKS.items() for one in fields(block, model)])
def test_every_decision_field_is_documented(path: str) -> None:
    # The degradation levels share fields, which are named once.
    ladder = path.startswith("degradation.") and (path.endswith(".enabled") or ".above" in path)
    assert path in NAMED or (ladder and path.rpartition(".")[0] in NAMED and path.rpartition(".")[2] in NAMED)


@pytest.mark.parametrize("module", modules())
def test_every_decision_module_is_documented(module: str) -> None:
    assert module in NAMED


def test_documented_fields_exist() -> None:
    known = {one for block, model in BLOCKS.items() for one in fields(block, model)}
    spoken = {name for name in NAMED if name.partition(".")[0] in BLOCKS and "." in name}
    assert {
        name for name in spoken if not any(one == name or one.startswith(f"{name}.") for one in known)
    } == set()


def test_documentation_links_resolve() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", DOC):
        assert (ROOT / "docs" / target).is_file(), target
