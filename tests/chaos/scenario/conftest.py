"""Minimal scenarios, and their problems."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.scenario.scenario_model import Scenario
from chaos.scenario.scenario_reader import checked_scenarios
from policies.findings import Problem

HEADING = "apiVersion: switchgear.dev/v1alpha1\nkind: Scenario\nmetadata: {name: NAME}\nspec:\n"
ABOUT = "  title: a title\n  incident: what happened\n"


def written(spec: str, name: str = "rehearsal") -> str:
    """A whole document around the lines of a spec."""
    lines = "".join(f"  {line}\n" for line in spec.splitlines())
    return HEADING.replace("NAME", name) + ABOUT + lines


def problems_of(text: str, folder: Path = Path()) -> tuple[Problem, ...]:
    """All problems of a file with this text."""
    return checked_scenarios(text.encode(), folder / "scenario.yaml")[1]


Make = Callable[[str], Scenario]


@pytest.fixture
def scenario() -> Make:
    """A valid scenario with these lines in its spec."""

    def made(spec: str = "") -> Scenario:
        found, problems = checked_scenarios(written(spec).encode(), Path("scenario.yaml"))
        assert not problems, [one.message for one in problems]
        return found[0].scenario

    return made
