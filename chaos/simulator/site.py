"""Everything that stands in simulated time for one experiment and one subject."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from chaos.fitting.blueprint import Blueprint
from chaos.fitting.documents import Address, documents
from chaos.fitting.speeds import costs_s
from chaos.fitting.subjects import StaticSubject
from chaos.history.events import Event
from chaos.load.arrivals import schedule_of
from chaos.load.sender import Target
from chaos.scenario.plan import EngineSpot
from chaos.scenario.trace import read_trace
from chaos.simulator.agents import SimulatedAgent
from chaos.simulator.callers import SimulatedCallers
from chaos.simulator.control import SimulatedControlPlane
from chaos.simulator.engine import Costs, SimulatedEngine
from chaos.simulator.prober import SimulatedProber
from chaos.simulator.proxy import SimulatedProxy
from chaos.simulator.static import static_told
from chaos.simulator.steered import Translator
from chaos.simulator.timeline import Timeline
from engine.report import EngineReport
from policies.load import load_contents
from policies.model import PolicySet
from xds_server.fleet import EngineId
from xds_server.sources.heard import FRESH_S
from xds_server.sources.prober import settings

WARM_UP_S: Final = 4.0
"""Before the first request: agents see a token, and the control plane has decided."""

_BEGINS_S: Final = 1000.0
_FIRST_PORT: Final = 20_000


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedSite:
    """The parts; ``control_plane`` is None where the subject has none."""

    timeline: Timeline
    plan: Blueprint
    policies_text: str
    engines: Mapping[str, SimulatedEngine]
    agents: Mapping[str, SimulatedAgent]
    probers: Mapping[str, SimulatedProber]
    proxies: Mapping[str, SimulatedProxy]
    callers: SimulatedCallers
    control_plane: SimulatedControlPlane | None

    def hear_agent(self, name: str, *, heard: bool) -> None:
        """An agent can be heard again, or no longer: then the prober takes over when its word is stale."""
        prober = self.probers[name]
        if heard:
            prober.stop()
        else:
            self.timeline.after(FRESH_S, lambda: None if self.agents[name].speaks or prober.on else prober.start())


def fitted(plan: Blueprint) -> tuple[PolicySet, str]:
    """The policies as the lab's control plane would serve them, and their text."""
    assert plan.fitting is not None  # noqa: S101 -- asked for policies only
    agents = plan.experiment.spec.topology.agents
    addresses = {
        one.name: Address(port=_FIRST_PORT + 2 * place, agent_port=_FIRST_PORT + 2 * place + 1 if agents else None)
        for place, one in enumerate(plan.engines)
    }
    text = documents(plan.fitting, addresses, {port: port for port in plan.fitting.ports})
    return load_contents({Path("policies.yaml"): text.encode()}), text


def site_of(plan: Blueprint, on_event: Callable[[Event], None]) -> SimulatedSite:
    """The site, at ``WARM_UP_S`` before the first request."""
    building = _Building(plan, on_event)
    return building.steered() if plan.fitting is not None else building.alone()


class _Building:
    def __init__(self, plan: Blueprint, on_event: Callable[[Event], None]) -> None:
        self._plan = plan
        self._on_event = on_event
        self._timeline = Timeline(_BEGINS_S - WARM_UP_S, began_s=_BEGINS_S)
        self._engines: dict[tuple[str, str], SimulatedEngine] = {}
        prefill_s, token_s = costs_s(plan.experiment)
        for pool_name, pool in plan.named_pools.items():
            ratio = pool.service_s / plan.experiment.service_s
            for spot in pool.engines:
                costs = Costs(
                    prefill_token_s=prefill_s * ratio * spot.slowness, token_s=token_s * ratio * spot.slowness
                )
                self._engines[pool_name, spot.name] = self._engine(spot, costs, gate=pool.gate)

    def steered(self) -> SimulatedSite:
        """With a control plane."""
        plan, timeline = self._plan, self._timeline
        assert plan.fitting is not None  # noqa: S101 -- see the caller
        policies, text = fitted(plan)
        proxies = self._proxies()
        agents: dict[str, SimulatedAgent] = {}
        probers: dict[str, SimulatedProber] = {}

        def on_out(out: frozenset[EngineId]) -> None:
            names = {key.engine for key in out}
            for name, prober in probers.items():
                prober.hurried = name in names

        control = SimulatedControlPlane(
            timeline,
            policies,
            Translator(policies, plan.fitting.shape, plan.fitting.port),
            tuple(proxies.values()),
            on_event=self._on_event,
            on_out=on_out,
        )

        def hear(report: EngineReport) -> None:
            control.hear(report)

        for (pool, name), engine in self._engines.items():
            probers[name] = SimulatedProber(
                timeline,
                engine,
                pool,
                settings(policies.pools[pool].spec.probe),
                rng=self._rng(f"prober {name}"),
                on_report=hear,
            )
            if plan.experiment.spec.topology.agents:
                agents[name] = SimulatedAgent(
                    timeline,
                    engine,
                    pool,
                    rng=self._rng(f"agent {name}"),
                    on_report=hear,
                    on_detected=self._on_event,
                )
            elif policies.pools[pool].spec.probe.enabled:
                probers[name].start()
        control.start(afresh=True)
        return self._site(text, proxies, agents=agents, probers=probers, control=control)

    def alone(self) -> SimulatedSite:
        """Static Envoys."""
        plan = self._plan
        assert isinstance(plan.subject, StaticSubject)  # noqa: S101 -- it has no policies
        proxies = self._proxies()
        told = static_told(
            plan.subject.static,
            engines=[one.name for one in plan.engines],
            slots=plan.experiment.slots,
            proxies=len(plan.experiment.proxies),
            deadline_s=plan.asking.deadline_s,
        )
        for one in proxies.values():
            one.obey(told)
        return self._site("", proxies, agents={}, probers={}, control=None)

    def _site(
        self,
        text: str,
        proxies: Mapping[str, SimulatedProxy],
        *,
        agents: Mapping[str, SimulatedAgent],
        probers: Mapping[str, SimulatedProber],
        control: SimulatedControlPlane | None,
    ) -> SimulatedSite:
        experiment = self._plan.experiment
        trace = experiment.spec.load.trace
        targets = [Target(url="", name=one.name, weight=one.demand) for one in experiment.proxies]
        return SimulatedSite(
            timeline=self._timeline,
            plan=self._plan,
            policies_text=text,
            engines=MappingProxyType({name: engine for (_, name), engine in self._engines.items()}),
            agents=agents,
            probers=probers,
            proxies=proxies,
            control_plane=control,
            callers=SimulatedCallers(
                self._timeline,
                schedule_of(experiment, targets, () if trace is None else read_trace(Path(trace))),
                proxies,
                deadline_s=self._plan.asking.deadline_s,
                seconds=experiment.seconds,
                on_request=self._on_event,
            ),
        )

    def _engine(self, spot: EngineSpot, costs: Costs, *, gate: bool) -> SimulatedEngine:
        return SimulatedEngine(
            self._timeline,
            spot.name,
            spot.slots,
            costs,
            gate=gate,
            rng=self._rng(f"engine {spot.name}"),
            on_attempt=self._on_event,
        )

    def _proxies(self) -> dict[str, SimulatedProxy]:
        by_pool: dict[str, dict[str, SimulatedEngine]] = {}
        for (pool, name), engine in self._engines.items():
            by_pool.setdefault(pool, {})[name] = engine
        return {
            one.name: SimulatedProxy(
                self._timeline, one.name, one.zone, by_pool, rng=self._rng(f"proxy {one.name}")
            )
            for one in self._plan.experiment.proxies
        }

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self._plan.experiment.seed} {name}")  # noqa: S311 -- repeatable, no secret
