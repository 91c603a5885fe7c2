"""The guided incident: its steps, and which of them were seen. Pure: a function of observations.

Steps are seen in order, each by what the control plane and the callers say, not by what was clicked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from chaos.lab_page.recent_answers import WINDOW_S, AnswerFigures

ENOUGH_ANSWERS: Final = 5
"""Good answers within the window that count as traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedEngine:
    """One engine as the control plane reports it.

    ``since_s`` is the age of its health; ``fault`` is that of the lab, empty if healthy.
    """

    name: str
    health: str = ""
    verdict: str = ""
    reason: str = ""
    since_s: float = 0.0
    fault: str = ""

    @property
    def in_rotation(self) -> bool:
        """Whether it gets new requests."""
        return self.health == "HEALTHY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The lab at one moment. ``explanation`` is what the control plane answers about an engine, if asked."""

    engines: Sequence[ObservedEngine] = ()
    answers: AnswerFigures = field(default_factory=AnswerFigures)
    explanation: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What was seen so far, one sentence per seen step. ``engine`` is the one that hangs, empty before."""

    seen: tuple[str, ...] = ()
    engine: str = ""

    @property
    def finished(self) -> bool:
        """Whether every step was seen."""
        return len(self.seen) == len(STEPS)

    @property
    def asks_why(self) -> bool:
        """Whether the next step needs the control plane's explanation of the engine."""
        return not self.finished and STEPS[len(self.seen)].evidence is _explained


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentStep:
    """One step: what to do, what to expect, and a command to type.

    Texts may use ``{engine}`` (``POOL/ENGINE``), ``{url}`` (of the engine), ``{admin}`` and
    ``{lab}``. ``evidence`` returns what was seen, in one sentence, or an empty text.
    """

    title: str
    todo: str
    expect: str
    command: str = ""
    evidence: Callable[[Progress, Observation], str]


def advanced(progress: Progress, now: Observation) -> Progress:
    """The progress after this observation; one observation may be the evidence of several steps."""
    while not progress.finished:
        step = STEPS[len(progress.seen)]
        said = step.evidence(progress, now)
        if not said:
            break
        engine = progress.engine or _hanging(now)
        progress = replace(progress, seen=(*progress.seen, said), engine=engine)
    return progress


def _flows(_: Progress, now: Observation) -> str:
    answers = now.answers
    served = answers.good >= ENOUGH_ANSWERS and not answers.failed
    if not served or not now.engines or not all(one.in_rotation for one in now.engines):
        return ""
    return f"{answers.good} good answers in {WINDOW_S:g} s, {len(now.engines)} engines in rotation"


def _hanging(now: Observation) -> str:
    return next((one.name for one in now.engines if one.fault == "hang"), "")


def _hung(_: Progress, now: Observation) -> str:
    name = _hanging(now)
    return f"{name} hangs: it accepts requests and answers none" if name else ""


def _ejected(progress: Progress, now: Observation) -> str:
    for one in now.engines:
        if one.name == progress.engine and one.verdict == "hung" and one.health == "UNHEALTHY":
            return f"{one.name} is out of rotation: {one.reason}"
    return ""


def _explained(progress: Progress, now: Observation) -> str:
    said = now.explanation.get(progress.engine, "")
    return said if "hung" in said else ""


def _served(progress: Progress, now: Observation) -> str:
    # Answers of the window's start may be from before the hang.
    out = any(
        one.name == progress.engine and not one.in_rotation and one.since_s >= WINDOW_S for one in now.engines
    )
    answers = now.answers
    if not out or answers.good < ENOUGH_ANSWERS or answers.failed or answers.refused:
        return ""
    return f"{answers.good} good answers in {WINDOW_S:g} s without {progress.engine}, none refused, none failed"


def _returned(progress: Progress, now: Observation) -> str:
    for one in now.engines:
        if one.name == progress.engine and one.in_rotation and not one.fault:
            return f"{one.name} is in rotation again"
    return ""


STEPS: Final[Sequence[IncidentStep]] = (
    IncidentStep(
        title="Watch healthy traffic",
        todo="Wait. The lab sends a small load through Envoy to all engines.",
        expect="Good answers only, and every engine in rotation.",
        command="switchgear get engines --admin {admin}",
        evidence=_flows,
    ),
    IncidentStep(
        title="Hang an engine",
        todo="Press “hang” at {engine}. Its port stays open, and /health still answers 200, as with a hung GPU.",
        expect="Requests that it holds get no token.",
        command="curl -i {url}/health",
        evidence=_hung,
    ),
    IncidentStep(
        title="See it ejected",
        todo="Wait two seconds. Its agent sees that no token arrives.",
        expect="{engine} is hung, and Envoy sends it no new requests.",
        command="switchgear status --admin {admin}",
        evidence=_ejected,
    ),
    IncidentStep(
        title="Ask why",
        todo="Type the command, or open the dashboard and click the engine.",
        expect="The evidence, the field of the policy that decided, and what ends it.",
        command="switchgear why {engine} --admin {admin}",
        evidence=_explained,
    ),
    IncidentStep(
        title="See callers served",
        todo="Wait until requests that the engine held are moved to another one. A stream that had begun is cut.",
        expect="Good answers only, from the other engines.",
        command="switchgear get pools --admin {admin}",
        evidence=_served,
    ),
    IncidentStep(
        title="Heal it",
        todo="Press “heal” at {engine}.",
        expect="A token probe succeeds, and it gets requests again.",
        command="switchgear get events --admin {admin}",
        evidence=_returned,
    ),
)


def step_texts(progress: Progress, places: Mapping[str, str]) -> list[dict[str, str | bool]]:
    """The steps as shown on the page; ``places`` fills the texts."""
    shown: list[dict[str, str | bool]] = []
    for number, step in enumerate(STEPS):
        seen = progress.seen[number] if number < len(progress.seen) else ""
        texts = {
            "title": step.title,
            "todo": step.todo.format_map(places),
            "expect": step.expect.format_map(places),
            "command": step.command.format_map(places),
        }
        shown.append({**texts, "seen": seen, "current": number == len(progress.seen)})
    return shown
