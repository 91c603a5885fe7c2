"""A fleet of thousands of engines for an hour, in seconds: calls as arrays, decisions by the control plane itself.

Coarser than ``simulate``: proxies are one, with all their knowledge, and pick the engine with the fewest calls of
three; a call that failed is tried again in the next step; agents are a delay from trouble to verdict. The control
plane decides when something has happened, often for a while after that, and seldom when nothing does.
docs/simulator.md says what that leaves out.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from chaos.fake_engine.faults import Crash, ErrorAfterWork, Fault, Hang
from chaos.faults.pulls import Kill, Part
from chaos.fitting.speeds import costs_s
from chaos.fitting.subjects import PolicySubject
from chaos.scenario.plan import Experiment
from chaos.simulator.arrays import EngineArrays, Floats, Ints
from chaos.simulator.large_site import Trouble, fault_of, large_policies, out_of, standing, told_of
from chaos.simulator.pulling import NotSimulatedError
from chaos.simulator.sight import Said, engine_traffic, pool_traffic, reported
from chaos.simulator.slices import Fleetwide, Slice
from chaos.simulator.told import Told
from engine.report import Verdict
from xds_server.decide.admission.ceiling import GATEWAY
from xds_server.decide.decide import decide
from xds_server.decide.decisions import Decisions
from xds_server.fleet import declared, with_traffic
from xds_server.traffic import Proxy, Tail

STEPS_PER_SERVICE: Final = 8
"""Steps in a mean service time."""

_BEGINS_S: Final = 1000.0
_RESTLESS_S: Final = 15.0
_RESTLESS_EACH_S: Final = 0.5
_TROUBLED_EACH_S: Final = 5.0
_CALM_EACH_S: Final = 30.0
_AT_EASE: Final = 2000
_TABLE: Final = 1 << 17


def simulate_large(experiment: Experiment, subject: PolicySubject, seed: int | None = None) -> Fleetwide:
    """What became of it, by second. NotSimulatedError for other faults than crashes, hangs and errors."""
    for outage in experiment.outages:
        for pull in (one for target in outage.targets[:1] for one in outage.fault.pulls(target)):
            fault_of(pull)
    if experiment.spec.load.client_retries.attempts or experiment.spec.load.trace is not None:
        raise NotSimulatedError("a large fleet has no traces, and callers who do not ask again; use simulate")
    return _Large(experiment if seed is None else replace(experiment, seed=seed), subject).run()


class _Large:
    def __init__(self, experiment: Experiment, subject: PolicySubject) -> None:
        self._policies, self._pool, experiment, self._translator = large_policies(experiment, subject)
        self._experiment = experiment
        self._step_s = experiment.service_s / STEPS_PER_SERVICE
        prefill_s, token_s = costs_s(experiment)
        load = experiment.spec.load
        shortest, longest = (
            (prefill_s * prompt + token_s * (answer - 1)) / self._step_s
            for prompt, answer in (
                (load.prompt_tokens.shortest, load.output_tokens.shortest),
                (load.prompt_tokens.longest, load.output_tokens.longest),
            )
        )
        self._names = [one.name for one in experiment.engines]
        self._place = {name: place for place, name in enumerate(self._names)}
        self._slots = [one.slots for one in experiment.engines]
        self._arrays = EngineArrays(
            np.array(self._slots, dtype=np.int64),
            np.array([1.0 / one.slowness for one in experiment.engines]),
            shortest=shortest,
            longest=longest,
            patience=math.ceil(load.deadline / self._step_s),
            seed=experiment.seed,
        )
        total = sum(one.demand for one in experiment.proxies)
        self._shares = {one.name: one.demand / total for one in experiment.proxies}
        self._proxies = {
            one.name: Proxy(
                node=one.name, zone=one.zone, role=GATEWAY, cuts=True, pools=frozenset(self._policies.pools)
            )
            for one in experiment.proxies
        }
        self._fleet = declared(self._policies)
        self._decisions: Decisions | None = None
        self._troubles: dict[int, Trouble] = {}
        self._boots: dict[int, int] = {}
        self._well_since_s: dict[int, float] = {}
        self._failing: Floats = np.zeros(len(self._names))
        self._reachable = np.ones(len(self._names), dtype=bool)
        self._table: Ints = np.arange(len(self._names))
        self._told: dict[str, Told] = {}
        self._ceiling: int | None = None
        self._attempts = 0
        self._retry_share = 1.0
        self._rounds = 0
        self._latencies = np.zeros(self._arrays_patience() + 2)
        self._second = np.zeros(7)
        self._done_per_s = 0.0
        self._cut = 0
        self._ended: Ints = np.zeros(len(self._names), dtype=np.int64)
        self._failed: Ints = np.zeros(len(self._names), dtype=np.int64)
        self._ended_before: dict[int, int] = {}

    def _arrays_patience(self) -> int:
        return math.ceil(self._experiment.spec.load.deadline / self._step_s) + STEPS_PER_SERVICE * 100

    # -- time ----------------------------------------------------------------------------------------------

    def run(self) -> Fleetwide:
        """Play it."""
        experiment, step_s = self._experiment, self._step_s
        moments = sorted(
            [(one.start_s, 1, one) for one in experiment.outages]
            + [(one.end_s, 0, one) for one in experiment.outages],
            key=lambda moment: moment[:2],
        )
        # Agents speak a while after the trouble; rounds then follow closely.
        restless_until_s = 0.0
        round_s = -1.0
        slices: list[Slice] = []
        retries = 0
        self._round(0.0)
        for step in range(math.ceil(experiment.seconds / step_s)):
            now_s = step * step_s
            while moments and moments[0][0] <= now_s:
                _, begins, outage = moments.pop(0)
                for target in outage.targets:
                    for pull in outage.fault.pulls(target):
                        if not (isinstance(pull, Kill) and pull.part is Part.AGENT):
                            self._strike(self._place[target], fault_of(pull) if begins else None, now_s)
                restless_until_s, round_s = now_s + _RESTLESS_S, -math.inf
            each_s = self._each_s(restless=now_s < restless_until_s)
            if now_s - round_s >= each_s:
                round_s = now_s
                if self._round(now_s):
                    restless_until_s = max(restless_until_s, now_s + _RESTLESS_S)
            retries = self._step(now_s, retries)
            if int((now_s + step_s) + 1e-9) > int(now_s + 1e-9) or step_s >= 1:
                slices.append(self._slice(float(int(now_s))))
        return Fleetwide(slices=tuple(slices), engines=len(self._names), rounds=self._rounds, engine_step_s=step_s)

    def _each_s(self, *, restless: bool) -> float:
        """From one round to the next; deciding for more engines takes longer, and so is done less often."""
        larger = min(max(1.0, len(self._names) / _AT_EASE), 3.0)
        if restless:
            return _RESTLESS_EACH_S * larger
        return larger * (_TROUBLED_EACH_S if self._troubles or self._well_since_s else _CALM_EACH_S)

    def _strike(self, place: int, fault: Fault | None, now_s: float) -> None:
        arrays = self._arrays
        healed = self._troubles.pop(place, None)
        arrays.rate[place] = arrays.usual[place]
        self._failing[place] = 0.0
        self._reachable[place] = True
        if fault is None:
            self._well_since_s[place] = now_s
            self._ended_before[place] = int(self._ended[place])
            if healed is not None and isinstance(healed.fault, Crash):
                self._boots[place] = self._boots.get(place, 1) + 1
            return
        self._ended_before[place] = int(self._ended[place])
        told_s, verdict = told_of(fault, now_s)
        self._well_since_s.pop(place, None)
        self._troubles[place] = Trouble(fault=fault, told_s=told_s, verdict=verdict)
        match fault:
            case Crash():
                self._reachable[place] = False
                arrays.rate[place] = 0.0
            case Hang():
                arrays.rate[place] = 0.0
            case ErrorAfterWork():
                self._failing[place] = fault.share
            case _:
                raise NotSimulatedError(f"a large fleet does not know {fault}")

    def _step(self, now_s: float, retries: int) -> int:
        """One step; how many failed calls are to be tried again in the next."""
        arrays, rng, second = self._arrays, self._arrays.rng, self._second
        factor = math.prod(
            one.factor for one in self._experiment.spec.load.surges if one.at <= now_s < one.at + one.lasts
        )
        arrived = int(rng.poisson(self._experiment.rate_per_s * self._step_s * factor))
        done = arrays.work()
        late = arrays.give_up()
        bad = np.flatnonzero(self._failing)
        failed = 0
        if len(bad):
            failures = rng.binomial(done[bad], self._failing[bad])
            self._failed[bad] += failures
            failed = int(failures.sum())
        self._ended += done
        dead = np.flatnonzero(~self._reachable)
        lost = arrays.drop(dead) if len(dead) else 0
        admitted, refused = self._admitted(arrived)
        got = self._sent(admitted + retries)
        # A refused connection costs nothing but the try.
        bounced = int(got[dead].sum()) if len(dead) else 0
        got[dead] = 0
        arrays.enqueue(got)
        started = arrays.start()
        np.add.at(self._latencies, started.taken_steps.clip(0, len(self._latencies) - 1), 1)
        self._latencies *= 0.999
        reached = int(got.sum())
        again, given_up = self._again(failed + lost + bounced + self._cut, admitted, retries)
        self._cut = 0
        finished = int(done.sum())
        doomed = min(started.doomed, max(0, finished - failed))
        self._done_per_s += (finished / self._step_s - self._done_per_s) * min(1.0, self._step_s / 2)
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
        if self._ceiling is None:
            return arrived, 0
        admitted = min(arrived, max(0, self._ceiling - int(self._arrays.in_flight.sum())))
        return admitted, arrived - admitted

    def _sent(self, count: int) -> Ints:
        if len(self._table) == 0:
            return np.zeros_like(self._arrays.running)
        return self._arrays.send(self._table, count)

    def _again(self, unanswered: int, admitted: int, retries: int) -> tuple[int, int]:
        """Of calls that got no answer: how many are tried again, and how many are not.

        Which tries these were is not remembered of each: they are taken to be mixed as what was sent lately.
        """
        sent = admitted + retries
        share = 0.0 if not sent else retries / sent
        # With a share r of retries among calls, a call is the n-th try with probability (1 - r) r^(n - 1).
        may = unanswered * (1.0 - share**self._attempts) if self._attempts else 0.0
        room = max(0.0, self._retry_share * float(self._arrays.in_flight.sum()))
        again = int(min(may, room))
        return again, unanswered - again

    # -- deciding ------------------------------------------------------------------------------------------

    def _round(self, now_s: float) -> bool:
        """Decide, and do as decided; whether anything about engines is different now."""
        clock_s = _BEGINS_S + now_s
        arrays, window = self._arrays, self._policies.effective[self._pool].breaker.window_calls
        verdicts = self._said(now_s)
        if verdicts:
            self._fleet = reported(self._fleet, self._pool, verdicts, clock_s)
        usual = max(1, len(self._names) - len(verdicts))
        service_s = self._experiment.service_s
        flying = arrays.in_flight
        troubled = sum(int(flying[place]) for place in self._troubles)
        own = {
            place: engine_traffic(
                done_per_s=float(self._slots[place] * arrays.rate[place] / service_s) if flying[place] else 0.0,
                service_s=service_s / float(arrays.rate[place]) if arrays.rate[place] > 0 else service_s,
                in_flight=float(flying[place]),
                window=min(window, int(self._ended[place] - self._ended_before.get(place, 0))),
                failed_share=float(self._failing[place]),
                succeeded=int(self._ended[place] - self._failed[place]),
                failed=int(self._failed[place]),
                now_s=clock_s,
            )
            for place in verdicts
        }
        traffic = pool_traffic(
            self._names,
            engine_traffic(
                done_per_s=self._done_per_s / usual,
                service_s=service_s,
                in_flight=(int(flying.sum()) - troubled) / usual,
                window=window,
                failed_share=0.0,
                succeeded=int(self._ended.mean()),
                failed=0,
                now_s=clock_s,
            ),
            own,
            proxies=self._shares,
            arrivals_per_s=self._experiment.rate_per_s,
            refused_per_s=self._refused_per_s(),
            held={self._names[place]: int(flying[place]) for place in self._troubles},
            tail=self._tail(),
            now_s=clock_s,
        )
        self._fleet = with_traffic(self._fleet, {self._pool: traffic})
        before, self._decisions = (
            self._decisions,
            decide(
                self._policies,
                self._fleet,
                self._decisions,
                proxies_by_role={GATEWAY: len(self._proxies)},
                calling_zones=frozenset({one.zone for one in self._proxies.values()} | {""}),
                now_s=clock_s,
                proxies=self._proxies,
            ),
        )
        self._rounds += 1
        changed = standing(before, self._pool) != standing(self._decisions, self._pool)
        self._obey(self._decisions, routed=changed or before is None)
        out = {
            key.engine for key, one in self._decisions.engines.items() if one.traffic_percent < 100 or one.ejector
        }
        for place in [one for one in self._well_since_s if self._names[one] not in out]:
            del self._well_since_s[place]
        return changed

    def _said(self, now_s: float) -> dict[int, Said]:
        """What agents say of engines that are in trouble, or were until lately, by place."""
        said = {}
        for place, trouble in self._troubles.items():
            known = now_s >= trouble.told_s
            proved = self._arrays.rate[place] > 0 and self._arrays.rng.random() >= self._failing[place]
            said[place] = Said(
                verdict=trouble.verdict if known else Verdict.READY,
                boot=self._boots.get(place, 1),
                proved=bool(proved) if known or trouble.verdict is Verdict.READY else True,
            )
        for place in self._well_since_s:
            said[place] = Said(verdict=Verdict.READY, boot=self._boots.get(place, 1), proved=True)
        return said

    def _refused_per_s(self) -> float:
        """Of the second that is not over yet."""
        return float(self._second[2])

    def _tail(self) -> Tail | None:
        total = self._latencies.sum()
        if total < 1:
            return None
        sums = np.cumsum(self._latencies) / total
        p50, p95, p99 = (float(np.searchsorted(sums, share) + 1) * self._step_s for share in (0.5, 0.95, 0.99))
        longest = float(np.flatnonzero(self._latencies > 0.5).max(initial=1) + 1) * self._step_s
        return Tail(p50_s=p50, p95_s=p95, p99_s=p99, calls=int(total), longest_s=longest)

    def _obey(self, decisions: Decisions, *, routed: bool) -> None:
        pool = decisions.pools[self._pool]
        admission = pool.admission
        if admission is not None and admission.in_force:
            # What is held on engines that are out is let in besides.
            self._ceiling = admission.total + admission.held
        else:
            self._ceiling = None
        if admission is not None:
            self._retry_share = admission.retry_percent / 100
        cut = [
            place
            for key, one in decisions.engines.items()
            if one.cut and key.pool == self._pool and (place := self._place.get(key.engine)) is not None
        ]
        if cut:
            lost = self._arrays.drop(np.array(cut))
            self._cut += lost
            self._second[6] += lost
        if routed:
            self._route(decisions)

    def _route(self, decisions: Decisions) -> None:
        """A table in which each engine stands as often as it is sent calls."""
        shares = np.zeros(len(self._names))
        made: dict[str, Told] = {}
        for name, proxy in self._proxies.items():
            if proxy.zone not in made:
                made[proxy.zone] = self._translator.told(self._fleet, decisions, proxy)
            told = made[proxy.zone]
            rules = next(iter(told.rules.values()))
            self._attempts = rules.attempts
            shares += self._shares[name] * self._of(told)
        self._table = (
            np.repeat(np.arange(len(self._names)), np.ceil(shares / shares.sum() * _TABLE).astype(np.int64))
            if shares.sum() > 0
            else np.zeros(0, dtype=np.int64)
        )

    def _of(self, told: Told) -> Floats:
        """Share of each engine in what proxies of one zone send."""
        shares = np.zeros(len(self._names))
        for zone in told.localities[self._pool]:
            well = [host for host in zone.hosts if host.healthy]
            if zone.weight is None or not well:
                continue
            total = sum(host.weight for host in well)
            part = zone.weight * len(well) / len(zone.hosts)
            for host in well:
                shares[self._place[host.engine]] += part * host.weight / total
        return shares / shares.sum() if shares.sum() > 0 else shares

    def _slice(self, at_s: float) -> Slice:
        arrived, good, refused, late, failed, calls, lost = (int(one) for one in self._second)
        self._second = np.zeros(7)
        decisions = self._decisions
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
            engines_in=len(self._names) - (0 if decisions is None else len(out_of(decisions, self._pool))),
            ceiling=self._ceiling,
        )
