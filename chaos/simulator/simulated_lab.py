"""A simulated lab for one experiment and one subject."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from chaos.history.history_events import HistoryEvent
from chaos.load.arrival_schedule import arrival_schedule
from chaos.load.request_sender import LoadTarget
from chaos.scenario.arrival_trace import read_trace
from chaos.scenario.experiment_plan import EnginePlacement
from chaos.simulator.config_translator import ProxyConfigTranslator
from chaos.simulator.simulated_agent import SimulatedAgent
from chaos.simulator.simulated_callers import SimulatedCallers
from chaos.simulator.simulated_clock import SimulatedClock
from chaos.simulator.simulated_control_plane import SimulatedControlPlane
from chaos.simulator.simulated_engine import BLOCK_SIZE, SimulatedEngine, SimulatedProfile, TokenCosts
from chaos.simulator.simulated_prober import SimulatedProber
from chaos.simulator.simulated_proxy import SimulatedProxy
from chaos.simulator.static_config import static_proxy_config
from chaos.testbed.blueprint import LabBlueprint
from chaos.testbed.policy_documents import LabEngineAddress, policy_documents
from chaos.testbed.service_costs import kv_transfer_token_s, longest_context_tokens, token_costs_s
from chaos.testbed.subjects import StaticSubject
from engine.report import EngineReport
from policies.load import load_contents
from policies.model import PolicySet
from policies.remote_prefill import Stage
from xds_server.engine_health.agent_state import FRESH_S
from xds_server.engine_health.engine_clients import probe_settings
from xds_server.model.fleet import EngineId

WARM_UP_S: Final = 4.0
"""Warm-up before the first request: agents see a token, and the control plane decides."""

_BEGINS_S: Final = 1000.0
_FIRST_PORT: Final = 20_000


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedLab:
    """Parts of the lab; ``control_plane`` is None if the subject has none."""

    timeline: SimulatedClock
    plan: LabBlueprint
    policies_text: str
    engines: Mapping[str, SimulatedEngine]
    agents: Mapping[str, SimulatedAgent]
    probers: Mapping[str, SimulatedProber]
    proxies: Mapping[str, SimulatedProxy]
    callers: SimulatedCallers
    control_plane: SimulatedControlPlane | None

    def receive_report(self, name: str, *, heard: bool) -> None:
        """Connect or disconnect an agent; the prober takes over once its last report is stale."""
        prober = self.probers[name]
        if heard:
            prober.stop()
        else:
            self.timeline.after(FRESH_S, lambda: None if self.agents[name].speaks or prober.on else prober.start())


def simulated_blueprint(plan: LabBlueprint) -> tuple[PolicySet, str]:
    """Policies as in the lab's control plane, and their text."""
    assert plan.fitting is not None  # noqa: S101 -- asked for policies only
    agents = plan.experiment.spec.topology.agents
    addresses = {
        one.name: LabEngineAddress(
            port=_FIRST_PORT + 2 * place, agent_port=_FIRST_PORT + 2 * place + 1 if agents else None
        )
        for place, one in enumerate(plan.engines)
    }
    text = policy_documents(plan.fitting, addresses, {port: port for port in plan.fitting.ports})
    return load_contents({Path("policies.yaml"): text.encode()}), text


def simulated_lab(plan: LabBlueprint, on_event: Callable[[HistoryEvent], None]) -> SimulatedLab:
    """Build the lab, ``WARM_UP_S`` before the first request."""
    building = _Building(plan, on_event)
    return building.steered() if plan.fitting is not None else building.alone()


class _Building:
    def __init__(self, plan: LabBlueprint, on_event: Callable[[HistoryEvent], None]) -> None:
        self._plan = plan
        self._on_event = on_event
        self._timeline = SimulatedClock(_BEGINS_S - WARM_UP_S, began_s=_BEGINS_S)
        self._engines: dict[tuple[str, str], SimulatedEngine] = {}
        prefill_s, token_s = token_costs_s(plan.experiment)
        longest, alone = longest_context_tokens(plan.experiment), plan.experiment.spec.load.conversations is None
        for pool_name, pool in plan.named_pools.items():
            prefills = pool.stage is Stage.PREFILL
            ratio = 1.0 if prefills else pool.service_s / plan.experiment.service_s
            for spot in pool.engines:
                costs = TokenCosts(
                    prefill_token_s=prefill_s * ratio * spot.slowness, token_s=token_s * ratio * spot.slowness
                )
                profile = SimulatedProfile(
                    slots=spot.slots,
                    costs=costs,
                    gate=pool.gate,
                    adapter=pool.adapter,
                    kv_transfer_token_s=kv_transfer_token_s(plan.experiment),
                    prefill_cache_tokens=longest if prefills else None,
                    prefix_cache_blocks=None if alone else -(-spot.slots * longest // BLOCK_SIZE),
                )
                self._engines[pool_name, spot.name] = self._engine(spot, profile)

    def steered(self) -> SimulatedLab:
        """A lab with a control plane."""
        plan, timeline = self._plan, self._timeline
        assert plan.fitting is not None  # noqa: S101 -- see the caller
        policies, text = simulated_blueprint(plan)
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
            ProxyConfigTranslator(policies, plan.fitting.shape, plan.fitting.port),
            tuple(proxies.values()),
            on_event=self._on_event,
            on_out=on_out,
        )

        def hear(report: EngineReport) -> None:
            control.receive_report(report)

        for (pool, name), engine in self._engines.items():
            probers[name] = SimulatedProber(
                timeline,
                engine,
                pool,
                probe_settings(policies.pools[pool].spec.probe),
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

    def alone(self) -> SimulatedLab:
        """A lab with static Envoys."""
        plan = self._plan
        assert isinstance(plan.subject, StaticSubject)  # noqa: S101 -- it has no policies
        proxies = self._proxies()
        told = static_proxy_config(
            plan.subject.static,
            engines=[one.name for one in plan.pools[0].engines],
            prefillers=[one.name for one in plan.experiment.prefill],
            slots=plan.experiment.slots,
            proxies=len(plan.experiment.proxies),
            deadline_s=plan.asking.deadline_s,
        )
        for one in proxies.values():
            one.apply_config(told)
        return self._site("", proxies, agents={}, probers={}, control=None)

    def _site(
        self,
        text: str,
        proxies: Mapping[str, SimulatedProxy],
        *,
        agents: Mapping[str, SimulatedAgent],
        probers: Mapping[str, SimulatedProber],
        control: SimulatedControlPlane | None,
    ) -> SimulatedLab:
        experiment = self._plan.experiment
        trace = experiment.spec.load.trace
        targets = [LoadTarget(url="", name=one.name, weight=one.demand) for one in experiment.proxies]
        return SimulatedLab(
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
                arrival_schedule(experiment, targets, () if trace is None else read_trace(Path(trace))),
                proxies,
                asking=self._plan.asking,
                bytes_per_token=_bytes_per_token(self._plan),
                seconds=experiment.seconds,
                on_request=self._on_event,
            ),
        )

    def _engine(self, spot: EnginePlacement, profile: SimulatedProfile) -> SimulatedEngine:
        return SimulatedEngine(
            self._timeline,
            spot.name,
            profile,
            rng=self._rng(f"engine {spot.name}"),
            on_attempt=self._on_event,
        )

    def _proxies(self) -> dict[str, SimulatedProxy]:
        by_pool: dict[str, dict[str, SimulatedEngine]] = {}
        for (pool, name), engine in self._engines.items():
            by_pool.setdefault(pool, {})[name] = engine
        return {
            one.name: SimulatedProxy(
                self._timeline,
                one.name,
                one.zone,
                by_pool,
                rng=self._rng(f"proxy {one.name}"),
                region=one.region,
            )
            for one in self._plan.experiment.proxies
        }

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self._plan.experiment.seed} {name}")  # noqa: S311 -- repeatable, no secret


def _bytes_per_token(plan: LabBlueprint) -> int | None:
    """How the listener estimates the tokens of a prompt; None unless its tenants have quotas of tokens."""
    tenants = None if plan.fitting is None else plan.fitting.listener.tenants
    return None if tenants is None or not tenants.counts_tokens else tenants.bytes_per_token
