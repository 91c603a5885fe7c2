"""The scenario library and its suites."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from chaos.scenario.scenario_reader import NOUN, LoadedScenario, read_scenarios
from policies.findings import PolicyError, PolicyErrors, Problem, did_you_mean
from policies.origin import WHOLE_FILE

FOLDER: Final = Path(__file__).parent.parent / "scenarios"
QUICK: Final = "quick"
STANDARD: Final = "standard"
FULL: Final = "full"
SUITES: Final = (QUICK, STANDARD, FULL)
_LABEL: Final = "suite"


@cache
def scenario_library() -> Mapping[str, LoadedScenario]:
    """All scenarios of the library by name, sorted."""
    return MappingProxyType({one.name: one for one in sorted(read_scenarios([FOLDER]), key=lambda one: one.name)})


def suite(name: str) -> tuple[LoadedScenario, ...]:
    """The scenarios of a suite: ``full`` is the whole library, others are selected by label.

    Raises PolicyErrors for an unknown suite.
    """
    if name not in SUITES:
        raise PolicyErrors.of([_unknown(name, SUITES, f"unknown suite {name}")], NOUN)
    every = tuple(scenario_library().values())
    return every if name == FULL else tuple(one for one in every if scenarios_labelled(one) == name)


def scenarios_labelled(one: LoadedScenario) -> str:
    """The scenario's suite label; empty if it is only in the full suite."""
    return one.scenario.metadata.labels.get(_LABEL, "")


def chosen_scenarios(words: Sequence[str]) -> tuple[LoadedScenario, ...]:
    """The scenarios for these words: files, folders, then names of the library.

    Raises PolicyErrors with all problems.
    """
    errors: list[PolicyError] = []
    found: list[LoadedScenario] = []
    for word in dict.fromkeys(words):
        path = Path(word)
        if path.exists() or path.suffix or len(path.parts) > 1:
            try:
                found += read_scenarios([path])
            except PolicyErrors as problems:
                errors += [one for one in problems.exceptions if isinstance(one, PolicyError)]
        elif word in scenario_library():
            found.append(scenario_library()[word])
        else:
            message = "neither a file nor a scenario of the library"
            errors.append(_unknown(word, tuple(scenario_library()), message))
    if errors:
        raise PolicyErrors.of(errors, NOUN)
    return tuple({(one.file, one.name): one for one in found}.values())


def _unknown(word: str, known: Sequence[str], message: str) -> PolicyError:
    hint = did_you_mean(word, known) or "`switchgear-chaos get scenarios` lists them"
    return Problem(
        code="SC014", at=WHOLE_FILE, message=message, found=word, allowed=", ".join(known), hint=hint
    ).error(word)
