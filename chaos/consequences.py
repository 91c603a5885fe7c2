"""Consequences of policies: plays each pool in the simulator, and reports what goes wrong in sentences.

``switchgear validate --deep`` finds ``consequences`` as an entry point. Four plays per pool, in simulated time:

* as many requests at once as the pool has slots: are they served?
* a loop of one caller's bad requests: how many engines stay in rotation?
* a hung engine at 50 % load: for how long does it get requests?
* a restart of one engine at 80 % load: is as much served as the other engines can?

A pool costs one to two seconds of processor time. Pools for which no time is left are named.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from chaos.history.history_events import HistoryEvent
from chaos.history.recorded_history import History
from chaos.measures.ejection_spans import control_plane_ejections
from chaos.measures.experiment_measures import measures_summary
from chaos.scenario.experiment_plan import Experiment
from chaos.scenario.resolve_experiment import resolve_experiment
from chaos.scenario.scenario_model import Scenario
from chaos.simulator.simulated_lab import SimulatedLab, simulated_lab
from chaos.simulator.simulation import simulate
from chaos.testbed.blueprint import lab_blueprint
from chaos.testbed.policy_fit import PolicyFitError
from chaos.testbed.request_shape import RequestKind
from chaos.testbed.subjects import PolicySubject
from policies.findings import Finding
from policies.lints import consequence_findings as findings
from policies.lints.lint_context import LintContext
from policies.model import PolicySet

LIMIT_S: Final = 8.0
"""Processor time for all pools: an answer within 10 s, with the imports."""

_USUAL: Final = RequestKind(batch=False, streaming=False, large=False)
_MOST_SLOTS: Final = 2048
_MOST_ENGINES: Final = 6
_SLOTS_IN_LOAD: Final = 4
"""Slots per engine under load: the answer does not depend on them, the time it takes does."""

_FAULT_AT_S: Final = 3.0
_HUNG_S: Final = 12.0
_RESTART_S: Final = 5.0
_GRACE_S: Final = 1.5
"""Seconds beyond the promise of the probe: default policies need less than 0.1 s, also for the second probe."""

_SEEDS: Final = (1, 2, 3)
"""A probe with a long interval sees a hang sooner or later by chance."""

_ENOUGH: Final = 0.85
"""Part of the possible answers: the rest goes to detection and chance."""

_SERVICE_TIMES: Final = 10
"""Mean service times after which as many requests as slots are answered, whatever their lengths."""

_BAD_STATUSES: Final = (404, 400, 422)
_BAD_CALLS: Final = 400
_BAD_EACH_S: Final = 0.05


def consequences(policies: PolicySet) -> tuple[tuple[Finding, ...], Mapping[str, str]]:
    """What goes wrong, and the pools that were not played, with the reason."""
    began_s = time.process_time()
    found: list[Finding] = []
    unplayed: dict[str, str] = {}
    for name in sorted(policies.pools):
        plays = _plays(policies, name)
        while True:
            if time.process_time() - began_s > LIMIT_S:
                unplayed[name] = f"time limit of {LIMIT_S:g} s"
                break
            try:
                finding = next(plays)
            except StopIteration:
                break
            except PolicyFitError as problem:
                unplayed[name] = str(problem)
                break
            if finding is not None:
                found.append(finding)
    return tuple(found), unplayed


def _plays(policies: PolicySet, name: str) -> Iterator[Finding | None]:
    """One item per play."""
    one = LintContext(policies=policies, name=name, pool=policies.pools[name].spec, spec=policies.effective[name])
    subject = PolicySubject(name="policies", policies=policies, pool=name)
    yield _full_load(one, subject)
    yield _bad_caller(one, subject)
    if len(_slots(one)) > 1:  # nothing can take over from the only engine
        yield _hung_engine(one, subject)
        yield _restart(one, subject)


def _full_load(one: LintContext, subject: PolicySubject) -> Finding | None:
    slots = _within(_slots(one), _MOST_SLOTS)
    site = _idle_lab(one, subject, slots)
    answers = [_Answer() for _ in range(sum(slots))]
    proxy, service_s = site.proxies["p0"], site.plan.experiment.service_s
    for number, answer in enumerate(answers):
        proxy.send_request(f"r{number}", answer, _USUAL, prompt_tokens=16, max_tokens=24)
    site.timeline.run(site.timeline.now_s + _SERVICE_TIMES * service_s)
    served = sum(answer.status == 200 for answer in answers)
    refused = sum(answer.status == 503 for answer in answers)
    return (
        findings.slots_out_of_reach(one, served=served, slots=len(answers))
        if refused and not served >= len(answers)
        else None
    )


def _bad_caller(one: LintContext, subject: PolicySubject) -> Finding | None:
    counted = [status for status in _BAD_STATUSES if status in one.spec.breaker.count_statuses]
    if not counted:
        return None
    slots = _under_load(one)
    site = _idle_lab(one, subject, slots)
    proxy, timeline, left = site.proxies["p0"], site.timeline, len(slots)
    for _ in range(_BAD_CALLS):
        proxy.fail_request(one.name, counted[0])
        timeline.run(timeline.now_s + _BAD_EACH_S)
        sample = proxy.sample(one.name)
        left = min(left, len(slots) - max(len(sample.unhealthy), len(sample.ejected)))
    if left == len(slots):
        return None
    return findings.ejected_by_a_caller(one, status=counted[0], left=left, engines=len(slots))


def _hung_engine(one: LintContext, subject: PolicySubject) -> Finding | None:
    fault = {"fault": {"kind": "hang"}, "lasts": f"{_HUNG_S:g}s"}
    until_s, longest_s = _FAULT_AT_S + _HUNG_S, 0.0
    for seed in _SEEDS:
        history = _played(one, subject, fault, percent=50, seconds=until_s, seed=seed)
        out = control_plane_ejections(history, "e0", until_s)
        longest_s = max(longest_s, out[0].start_s - _FAULT_AT_S if out else _HUNG_S)
    if longest_s <= one.pool.probe.step_s + _GRACE_S:
        return None
    return findings.hung_engine_kept(one, after_s=longest_s, played_s=_HUNG_S)


def _restart(one: LintContext, subject: PolicySubject) -> Finding | None:
    fault = {"fault": {"kind": "crash"}, "lasts": f"{_RESTART_S:g}s"}
    summary = measures_summary(_played(one, subject, fault, percent=80, seconds=_FAULT_AT_S + 2 * _RESTART_S))
    good, possible = summary.measures.both.goodput_percent, summary.possible_both_percent
    if good is None or possible is None or good >= _ENOUGH * possible:
        return None
    return findings.restart_loses_requests(one, good=good, possible=possible)


class _Answer:
    """A caller that keeps the status of its answer."""

    def __init__(self) -> None:
        self.status = 0

    def headers(self, status: int, *, refusal: str = "", fallback: str = "", session: str = "") -> None:  # noqa: ARG002 - as asked
        """Response headers."""
        self.status = status

    def tokens(self, total: int) -> None:
        """A stream has sent tokens."""

    def ended(self) -> None:
        """The answer is complete."""

    def failed_inside(self) -> None:
        """A stream ends with an error."""

    def broken(self) -> None:
        """The answer is cut."""
        self.status = 0


def _slots(one: LintContext) -> list[int]:
    """Slots of each engine; two engines where the cluster finds them."""
    usual = one.pool.slots_per_engine
    return [engine.slots or usual for engine in one.pool.endpoints] or [usual, usual]


def _within(slots: Sequence[int], most: int) -> list[int]:
    """As many of these engines as have this many slots together, at least one."""
    kept: list[int] = []
    for each in slots:
        if kept and sum(kept) + each > most:
            break
        kept.append(min(each, most))
    return kept


def _under_load(one: LintContext) -> list[int]:
    return [min(each, _SLOTS_IN_LOAD) for each in _slots(one)[:_MOST_ENGINES]]


def _idle_lab(one: LintContext, subject: PolicySubject, slots: Sequence[int]) -> SimulatedLab:
    """A lab with a warm control plane and no callers."""
    events: list[HistoryEvent] = []
    site = simulated_lab(lab_blueprint(_experiment(one, slots, percent=50, seconds=1.0), subject), events.append)
    site.timeline.run(site.timeline.began_s)
    return site


def _played(
    one: LintContext,
    subject: PolicySubject,
    fault: Mapping[str, Any],
    *,
    percent: float,
    seconds: float,
    seed: int = _SEEDS[0],
) -> History:
    faults = [{**fault, "target": {"engine": 0}, "at": f"{_FAULT_AT_S:g}s"}]
    experiment = _experiment(one, _under_load(one), percent=percent, seconds=seconds, faults=faults)
    return simulate(experiment, subject, seed)


def _experiment(
    one: LintContext,
    slots: Sequence[int],
    *,
    percent: float,
    seconds: float,
    faults: Sequence[Mapping[str, Any]] = (),
) -> Experiment:
    """The pool's own engines and zones under this load; one proxy, in the zone of the first."""
    zones = [engine.zone or "a" for engine in one.pool.endpoints[: len(slots)]] or ["a"] * len(slots)
    spec = {
        "title": "validate --deep",
        "incident": "none",
        "topology": {
            "zones": sorted(set(zones)),
            "engines": [
                {"count": 1, "zone": zone, "slots": each} for zone, each in zip(zones, slots, strict=True)
            ],
            "proxies": [{"zone": zones[0]}],
            "agents": any(engine.agent_port for engine in one.pool.endpoints),
        },
        "load": {"percent": percent},
        "lasts": f"{seconds:g}s",
        "faults": faults,
    }
    return resolve_experiment(Scenario.model_validate({"metadata": {"name": "deep"}, "spec": spec}))
