"""A fleet of thousands of engines for an hour, in seconds: calls as arrays, decisions by the control plane itself.

Coarser than ``simulate``: proxies are one, with all their knowledge, and pick the engine with the fewest calls of
three; a call that failed is tried again in the next step; agents are a delay from trouble to verdict.
docs/simulator.md says what that leaves out.
"""

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np

from chaos.faults.actions import KillProcess, ProcessRole
from chaos.scenario.experiment_plan import Experiment, PlannedOutage
from chaos.simulator.arrays import EngineArrays, Ints
from chaos.simulator.large_control import LargeControl
from chaos.simulator.large_site import LargeFleet, fault_of, large_policies
from chaos.simulator.simulated_injector import NotSimulatedError
from chaos.simulator.slices import Fleetwide, Slice
from chaos.testbed.service_costs import token_costs_s
from chaos.testbed.subjects import PolicySubject

STEPS_PER_SERVICE: Final = 8
"""Steps in a mean service time."""

_LONGEST_SERVICES: Final = 100


def simulate_large(experiment: Experiment, subject: PolicySubject, seed: int | None = None) -> Fleetwide:
    """What became of it, by second. NotSimulatedError for other faults than crashes, hangs and errors."""
    for outage in experiment.outages:
        for pull in (one for target in outage.targets[:1] for one in outage.fault.actions(target)):
            fault_of(pull)
    if experiment.spec.load.client_retries.attempts or experiment.spec.load.trace is not None:
        raise NotSimulatedError("a large fleet has no traces, and callers who do not ask again; use simulate")
    with _uncollected():
        return _Large(experiment if seed is None else replace(experiment, seed=seed), subject).run()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the search for cycles: there are none, and it would pass over every engine again in each round."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Large:
    def __init__(self, experiment: Experiment, subject: PolicySubject) -> None:
        policies, pool, experiment, translator = large_policies(experiment, subject)
        self._experiment = experiment
        self._step_s = step_s = experiment.service_s / STEPS_PER_SERVICE
        prefill_s, token_s = token_costs_s(experiment)
        load = experiment.spec.load
        shortest, longest = (
            (prefill_s * prompt + token_s * (answer - 1)) / step_s
            for prompt, answer in (
                (load.prompt_tokens.shortest, load.output_tokens.shortest),
                (load.prompt_tokens.longest, load.output_tokens.longest),
            )
        )
        patience = math.ceil(load.deadline / step_s)
        self._arrays = EngineArrays(
            np.array([one.slots for one in experiment.engines], dtype=np.int64),
            np.array([1.0 / one.slowness for one in experiment.engines]),
            shortest=shortest,
            longest=longest,
            patience=patience,
            seed=experiment.seed,
        )
        self._fleet = LargeFleet(self._arrays, step_s, patience + STEPS_PER_SERVICE * _LONGEST_SERVICES)
        self._control = LargeControl(experiment, policies, pool, translator, self._fleet)
        self._place = {one.name: place for place, one in enumerate(experiment.engines)}
        self._second = np.zeros(7)
        self._cut = 0

    def run(self) -> Fleetwide:
        """Play it."""
        experiment, step_s, control = self._experiment, self._step_s, self._control
        moments = sorted(
            [(one.start_s, 1, one) for one in experiment.outages]
            + [(one.end_s, 0, one) for one in experiment.outages]
            + [(at_s, 2, None) for one in experiment.spec.load.surges for at_s in (one.at, one.at + one.lasts)],
            key=lambda moment: moment[:2],
        )
        slices: list[Slice] = []
        retries = 0
        for step in range(math.ceil(experiment.seconds / step_s)):
            now_s = step * step_s
            while moments and moments[0][0] <= now_s:
                _, begins, outage = moments.pop(0)
                if outage is not None:
                    self._strike(outage, now_s, begins=begins == 1)
                control.alarmed(now_s)
            self._fleet.refused = float(self._second[2])
            cut = control.decided(now_s)
            self._cut += cut
            self._second[6] += cut
            retries = self._step(now_s, retries)
            if int((now_s + step_s) + 1e-9) > int(now_s + 1e-9) or step_s >= 1:
                slices.append(self._slice(float(int(now_s))))
        return Fleetwide(
            slices=tuple(slices), engines=len(self._place), rounds=control.rounds, engine_step_s=step_s
        )

    def _strike(self, outage: PlannedOutage, now_s: float, *, begins: bool) -> None:
        for target in outage.targets:
            for pull in outage.fault.actions(target):
                if not (isinstance(pull, KillProcess) and pull.part is ProcessRole.AGENT):
                    self._fleet.strike(self._place[target], fault_of(pull) if begins else None, now_s)

    def _step(self, now_s: float, retries: int) -> int:
        """One step; how many failed calls are to be tried again in the next."""
        arrays, fleet, rng, second = self._arrays, self._fleet, self._arrays.rng, self._second
        factor = math.prod(
            one.factor for one in self._experiment.spec.load.surges if one.at <= now_s < one.at + one.lasts
        )
        arrived = int(rng.poisson(self._experiment.rate_per_s * self._step_s * factor))
        done = arrays.work()
        late = arrays.give_up()
        bad = np.flatnonzero(fleet.failing)
        failed = 0
        if len(bad):
            failures = rng.binomial(done[bad], fleet.failing[bad])
            fleet.failed[bad] += failures
            failed = int(failures.sum())
        fleet.ended += done
        dead = np.flatnonzero(~fleet.reachable)
        lost = arrays.drop(dead) if len(dead) else 0
        admitted, refused = self._admitted(arrived)
        got = self._sent(admitted + retries)
        # A refused connection costs nothing but the try.
        bounced = int(got[dead].sum()) if len(dead) else 0
        got[dead] = 0
        arrays.enqueue(got)
        started = arrays.start()
        fleet.timed(started.taken_steps)
        reached = int(got.sum())
        again, given_up = self._again(failed + lost + bounced + self._cut, admitted, retries)
        self._cut = 0
        finished = int(done.sum())
        doomed = min(started.doomed, max(0, finished - failed))
        fleet.done_per_s += (finished / self._step_s - fleet.done_per_s) * min(1.0, self._step_s / 2)
        second += (
            arrived,
            max(0, finished - failed - doomed),
            refused,
            late + doomed,
            given_up,
            reached,
            failed + lost + doomed,
        )
        return again

    def _admitted(self, arrived: int) -> tuple[int, int]:
        ceiling = self._control.ceiling
        if ceiling is None:
            return arrived, 0
        admitted = min(arrived, max(0, ceiling - int(self._arrays.in_flight.sum())))
        return admitted, arrived - admitted

    def _sent(self, count: int) -> Ints:
        if len(self._control.table) == 0:
            return np.zeros_like(self._arrays.running)
        return self._arrays.send(self._control.table, count)

    def _again(self, unanswered: int, admitted: int, retries: int) -> tuple[int, int]:
        """Of calls that got no answer: how many are tried again, and how many are not.

        Which tries these were is not remembered of each: they are taken to be mixed as what was sent lately.
        """
        sent = admitted + retries
        share = 0.0 if not sent else retries / sent
        # With a share r of retries among calls, a call is the n-th try with probability (1 - r) r^(n - 1).
        may = unanswered * (1.0 - share**self._control.attempts) if self._control.attempts else 0.0
        room = max(0.0, self._control.retry_share * float(self._arrays.in_flight.sum()))
        again = int(min(may, room))
        return again, unanswered - again

    def _slice(self, at_s: float) -> Slice:
        arrived, good, refused, late, failed, calls, lost = (int(one) for one in self._second)
        self._second = np.zeros(7)
        return Slice(
            at_s=at_s,
            arrived=arrived,
            good=good,
            refused=refused,
            late=late,
            failed=failed,
            calls=calls,
            lost=lost,
            in_flight=int(self._arrays.in_flight.sum()),
            engines_in=self._control.engines_in,
            ceiling=self._control.ceiling,
        )
