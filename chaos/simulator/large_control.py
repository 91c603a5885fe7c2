"""The control plane of a large fleet: what it sees, when it looks, what it decides, and what proxies make of it.

Everything is decided by ``decide``. Deciding for ten thousand engines takes a good part of a second, so it is done
when something has happened, often for a while after that, in which agents come to speak, and ever more seldom
while nothing changes.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from chaos.scenario.experiment_plan import Experiment
from chaos.simulator.arrays import Floats, Ints
from chaos.simulator.config_translator import ProxyConfigTranslator
from chaos.simulator.large_site import LargeFleet, standing
from chaos.simulator.sight import Said, engine_traffic, pool_traffic, reported
from engine.report import Verdict
from policies.model import PolicySet
from xds_server.decide.decide import decide
from xds_server.decide.decisions import Decisions, Health
from xds_server.model.fleet import EngineId, declared, with_traffic
from xds_server.model.pool_traffic import Proxy
from xds_server.model.view import GATEWAY
from xds_server.translate.endpoints import zone_weights

_BEGINS_S: Final = 1000.0
_RESTLESS_S: Final = 6.0
_RESTLESS_EACH_S: Final = 0.5
_TROUBLED_EACH_S: Final = 10.0
_CALM_EACH_S: Final = 60.0
_SLOWER: Final = 1.5
"""A round in which nothing changed makes the time to the next so many times longer."""

_AT_EASE: Final = 2000
_MOST_LARGER: Final = 3.0
_TABLE: Final = 1 << 17


class LargeControl:
    """What was decided last, as callers feel it.

    ``ceiling`` is how much may be in flight, None where all may. ``table`` holds each engine as often as it is
    sent calls. A call may be tried again ``attempts`` times, and ``retry_share`` of what is in flight at once.
    """

    def __init__(
        self,
        experiment: Experiment,
        policies: PolicySet,
        pool: str,
        translator: ProxyConfigTranslator,
        site: LargeFleet,
    ) -> None:
        self._experiment, self._policies, self._pool, self._translator = experiment, policies, pool, translator
        self._site = site
        self._names = [one.name for one in experiment.engines]
        self._place = {name: place for place, name in enumerate(self._names)}
        total = sum(one.demand for one in experiment.proxies)
        self._shares = {one.name: one.demand / total for one in experiment.proxies}
        self._proxies = {
            one.name: Proxy(node=one.name, zone=one.zone, role=GATEWAY, cuts=True, pools=frozenset(policies.pools))
            for one in experiment.proxies
        }
        self._zones = frozenset({one.zone for one in self._proxies.values()} | {""})
        self._larger = min(max(1.0, len(self._names) / _AT_EASE), _MOST_LARGER)
        self._fleet = declared(policies)
        self._decisions: Decisions | None = None
        self._standing: Mapping[EngineId, float] | None = None
        self._each_s = 0.0
        self._restless_until_s = 0.0
        self._next_s = 0.0
        self.ceiling: int | None = None
        self.table: Ints = np.arange(len(self._names))
        self.attempts = 0
        self.retry_share = 1.0
        self.engines_in = len(self._names)
        self.rounds = 0

    def alarmed(self, now_s: float) -> None:
        """Something has happened: look at once, and often for a while."""
        self._restless_until_s = now_s + _RESTLESS_S
        self._next_s = now_s

    def decided(self, now_s: float) -> int:
        """Decide, where it is time to; the calls that were cut off by that."""
        if now_s < self._next_s:
            return 0
        cut, changed = self._round(now_s)
        if changed:
            self._restless_until_s = max(self._restless_until_s, now_s + _RESTLESS_S)
        if now_s < self._restless_until_s:
            self._each_s = _RESTLESS_EACH_S
        else:
            most_s = _TROUBLED_EACH_S if self._site.unsettled else _CALM_EACH_S
            self._each_s = min(max(self._each_s * _SLOWER, _RESTLESS_EACH_S), most_s)
        self._next_s = now_s + self._larger * self._each_s
        return cut

    def _round(self, now_s: float) -> tuple[int, bool]:
        """The calls that were cut off, and whether anything about engines is different now."""
        self._look(now_s)
        decisions = self._decisions = decide(
            self._policies,
            self._fleet,
            self._decisions,
            proxies_by_role={GATEWAY: len(self._proxies)},
            calling_zones=self._zones,
            now_s=_BEGINS_S + now_s,
            proxies=self._proxies,
        )
        self.rounds += 1
        stood, self._standing = self._standing, standing(decisions, self._pool)
        stand = self._standing
        pool = decisions.pools[self._pool]
        self.engines_in = len(self._names) - sum(pool.engines[key].health is not Health.HEALTHY for key in stand)
        if pool.admission is not None:
            # What is held on engines that are out is let in besides.
            admission = pool.admission
            self.ceiling = admission.total + admission.held if admission.in_force else None
            self.retry_share = admission.retry_percent / 100
        cut = [self._place[key.engine] for key in stand if pool.engines[key].cut]
        lost = self._site.arrays.drop(np.array(cut)) if cut else 0
        if stood != stand:
            self._route(decisions)
        unsettled = {key.engine for key, one in pool.engines.items() if one.ejector or one.traffic_percent < 100}
        self._site.recovering = {place for place in self._site.recovering if self._names[place] in unsettled}
        return lost, stood != stand

    # -- what it sees --------------------------------------------------------------------------------------

    def _look(self, now_s: float) -> None:
        """Reports and traffic as they are now."""
        clock_s, site, service_s = _BEGINS_S + now_s, self._site, self._experiment.service_s
        arrays, window = site.arrays, self._policies.effective[self._pool].breaker.window_calls
        verdicts = self._said(now_s)
        if verdicts:
            self._fleet = reported(self._fleet, self._pool, verdicts, clock_s)
        usual = max(1, len(self._names) - len(verdicts))
        flying = arrays.in_flight
        held = {self._names[place]: int(flying[place]) for place in site.troubles}
        own = {
            place: engine_traffic(
                done_per_s=float(arrays.slots[place] * arrays.rate[place] / service_s) if flying[place] else 0.0,
                service_s=service_s / float(arrays.rate[place]) if arrays.rate[place] > 0 else service_s,
                in_flight=float(flying[place]),
                window=min(window, int(site.ended[place] - site.ended_before.get(place, 0))),
                failed_share=float(site.failing[place]),
                succeeded=int(site.ended[place] - site.failed[place]),
                failed=int(site.failed[place]),
                now_s=clock_s,
            )
            for place in verdicts
        }
        traffic = pool_traffic(
            self._names,
            engine_traffic(
                done_per_s=site.done_per_s / usual,
                service_s=service_s,
                in_flight=(int(flying.sum()) - sum(held.values())) / usual,
                window=window,
                failed_share=0.0,
                succeeded=int(site.ended.mean()),
                failed=0,
                now_s=clock_s,
            ),
            own,
            proxies=self._shares,
            arrivals_per_s=self._experiment.rate_per_s,
            refused_per_s=site.refused,
            held=held,
            tail=site.tail(),
            now_s=clock_s,
        )
        self._fleet = with_traffic(self._fleet, {self._pool: traffic})

    def _said(self, now_s: float) -> dict[int, Said]:
        """What agents say of engines that are in trouble, or were until lately, by place."""
        site, said = self._site, {}
        for place, trouble in site.troubles.items():
            known = now_s >= trouble.told_s
            proved = site.arrays.rate[place] > 0 and site.arrays.rng.random() >= site.failing[place]
            said[place] = Said(
                verdict=trouble.verdict if known else Verdict.READY,
                boot=site.boots.get(place, 1),
                proved=bool(proved) if known or trouble.verdict is Verdict.READY else True,
            )
        for place in site.recovering:
            said[place] = Said(verdict=Verdict.READY, boot=site.boots.get(place, 1), proved=True)
        return said

    # -- what proxies make of it ---------------------------------------------------------------------------

    def _route(self, decisions: Decisions) -> None:
        """Fill the table."""
        # Zones differ in nothing but how much of their calls goes where.
        told = self._translator.proxy_config(self._fleet, decisions, next(iter(self._proxies.values())))
        self.attempts = next(iter(told.rules.values())).attempts
        by_zone: dict[str, float] = {}
        for name, proxy in self._proxies.items():
            by_zone[proxy.zone] = by_zone.get(proxy.zone, 0.0) + self._shares[name]
        within: dict[str, Floats] = {}
        for zone in told.localities[self._pool]:
            shares = np.zeros(len(self._names))
            for host in zone.hosts:
                if host.healthy:
                    shares[self._place[host.engine]] = host.weight
            # Envoy takes a zone's weight times the part of it that is well.
            well = np.count_nonzero(shares) / len(zone.hosts)
            if well:
                within[zone.zone] = well * shares / shares.sum()
        shares = np.zeros(len(self._names))
        for caller, share in by_zone.items():
            weights = zone_weights(self._pool, self._fleet.pools[self._pool], decisions, caller)
            sent = sum((weights.get(zone, 0) * part for zone, part in within.items()), np.zeros(len(self._names)))
            if sent.sum() > 0:
                shares += share * sent / sent.sum()
        self.table = (
            np.repeat(np.arange(len(self._names)), np.ceil(shares / shares.sum() * _TABLE).astype(np.int64))
            if shares.sum() > 0
            else np.zeros(0, dtype=np.int64)
        )
