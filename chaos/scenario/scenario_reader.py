"""Read scenario files; report all problems at once, in the format of policy errors.

A file may hold several scenarios, one per YAML document. Contradictions within one (a fault after the end, an
unknown zone, a blast radius exceeded) are found here, so every scenario returned resolves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.scenario.arrival_trace import TraceError, read_trace
from chaos.scenario.experiment_plan import Experiment
from chaos.scenario.resolve_experiment import resolve_experiment
from chaos.scenario.scenario_model import Scenario
from chaos.scenario.scenario_rules import scenario_problems
from policies.findings import PolicyError, PolicyErrors, Problem
from policies.origin import WHOLE_FILE, Places, nearest, path_text
from policies.policy_files import decode_text, read, search
from policies.validation import Vocabulary, validate_document
from policies.yaml_text import MAX_PROBLEMS, RawDocument, parse

NOUN: Final = "scenario"
_TO_POLICIES: Final = "this is a policy: pass it with -f; a scenario has `kind: Scenario`"
SCENARIOS: Final = Vocabulary(
    noun=NOUN,
    kinds={"Scenario": Scenario},
    elsewhere=dict.fromkeys(("EnginePool", "ModelRoute", "ResiliencePolicy"), _TO_POLICIES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedScenario:
    """A valid scenario, with its file and line numbers."""

    scenario: Scenario
    file: Path
    places: Places

    @property
    def name(self) -> str:
        """The scenario's metadata.name."""
        return self.scenario.metadata.name

    def experiment(self, seed: int | None = None) -> Experiment:
        """Resolve the experiment, optionally with another seed. Paths are relative to the scenario's file."""
        scenario = self.scenario
        if seed is not None:
            scenario = scenario.model_copy(update={"spec": scenario.spec.model_copy(update={"seed": seed})})
        return resolve_experiment(scenario, self.file.parent)


def read_scenarios(paths: Sequence[Path]) -> tuple[LoadedScenario, ...]:
    """All scenarios in these files and folders, in order; raises PolicyErrors with all problems."""
    found = search(paths, NOUN)
    errors = [problem.error(file) for file, problem in found.problems]
    scenarios: list[LoadedScenario] = []
    for path in found.files:
        content = read(path, NOUN)
        if isinstance(content, Problem):
            errors.append(content.error(str(path)))
            continue
        held, problems = checked_scenarios(content, path)
        scenarios += held
        errors += [problem.error(str(path)) for problem in problems[:MAX_PROBLEMS]]
    errors += _same_names(scenarios)
    if not errors and not scenarios:
        errors += [_nothing_in(path) for path in paths]
    if errors:
        raise PolicyErrors.of(errors, NOUN)
    return tuple(scenarios)


def checked_scenarios(content: bytes, file: Path) -> tuple[tuple[LoadedScenario, ...], tuple[Problem, ...]]:
    """The valid scenarios of one file's content, and the problems of the others."""
    text = decode_text(content)
    if isinstance(text, Problem):
        return (), (text,)
    parsed = parse(text)
    problems = list(parsed.problems)
    scenarios: list[LoadedScenario] = []
    for raw in parsed.documents:
        if raw.value is None:
            continue  # empty document
        found = validate_document(raw, SCENARIOS)
        problems += found.problems
        if isinstance(found.model, Scenario):
            wrong = (*_contradictions(found.model, raw), *_in_trace(found.model, raw, file.parent))
            problems += wrong
            if not wrong:
                scenarios.append(LoadedScenario(scenario=found.model, file=file, places=raw.places))
    if not problems and not scenarios:
        problems.append(_NOTHING)
    return tuple(scenarios), tuple(problems)


def _contradictions(scenario: Scenario, raw: RawDocument) -> Iterator[Problem]:
    for one in scenario_problems(scenario.spec):
        yield Problem(
            code=one.code,
            at=nearest(raw.places, one.steps),
            path=path_text(one.steps),
            message=one.message,
            found=one.found,
            allowed=one.allowed,
            hint=one.hint,
        )


def _in_trace(scenario: Scenario, raw: RawDocument, folder: Path) -> Iterator[Problem]:
    """Problems of the arrivals file, reported where the scenario names it."""
    trace = scenario.spec.load.trace
    if trace is None:
        return
    steps = ("spec", "load", "trace")
    try:
        read_trace(folder / trace)
    except TraceError as error:
        for complaint in error.complaints:
            yield Problem(
                code="SC013", at=nearest(raw.places, steps), path=path_text(steps), message=complaint, found=trace
            )


def _same_names(scenarios: Sequence[LoadedScenario]) -> Iterator[PolicyError]:
    first: dict[str, LoadedScenario] = {}
    for one in scenarios:
        before = first.setdefault(one.name, one)
        if before is not one:
            where = Problem(code="", at=nearest(before.places, ("metadata", "name")), message="")
            problem = Problem(
                code="SC012",
                at=nearest(one.places, ("metadata", "name")),
                path="metadata.name",
                message=f"duplicate scenario name {one.name}, also in {where.error(str(before.file)).origin}",
                hint="rename one of them",
            )
            yield problem.error(str(one.file))


_NOTHING: Final = Problem(
    code="SG006",
    at=WHOLE_FILE,
    message="no scenario found",
    hint="a scenario starts with `apiVersion: switchgear.dev/v1alpha1`; see chaos/scenarios/ for examples",
)


def _nothing_in(path: Path) -> PolicyError:
    return _NOTHING.error(str(path))
