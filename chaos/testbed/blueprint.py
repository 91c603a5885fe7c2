"""Blueprint of a lab for one experiment and one subject. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.history.history_events import EngineRecord, ExperimentBegan, ProxyRecord
from chaos.load.conversation_prompts import session_key
from chaos.load.request_sender import RequestTemplate
from chaos.real_vllm.vllm_replica import MODEL as REAL_MODEL
from chaos.scenario.experiment_plan import EnginePlacement, Experiment
from chaos.testbed.caller_fit import group_headers
from chaos.testbed.policy_fit import MissingPoolError, PolicyFit, policy_fit
from chaos.testbed.service_costs import PREFILL_SHARE
from chaos.testbed.static_envoy import POOL, PREFILL_POOL
from chaos.testbed.subjects import PolicySubject, StaticSubject, Subject
from policies.remote_prefill import Stage
from policies.resilience import ResilienceSpec

SIMULATED_MODEL: Final = "lab"
"""Pool name for subjects without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBlueprint:
    """Engines of one pool; ``service_s`` is the mean service time at slowness 1, of a prompt if it prefills.

    ``adapter``: LoRA adapter that they have from the start; empty for none.
    """

    model: str
    gate: bool
    service_s: float
    engines: tuple[EnginePlacement, ...]
    stage: Stage | None = None
    adapter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabBlueprint:
    """Complete plan of a lab.

    ``experiment`` is the one to run; policies may have slowed its engines. ``max_wait_s`` is the subject's longest
    queueing time; default: Switchgear's.
    """

    experiment: Experiment
    subject: Subject
    fitting: PolicyFit | None
    pools: tuple[PoolBlueprint, ...]
    pool: str
    asking: RequestTemplate
    time_scale: float
    max_wait_s: float

    @property
    def engines(self) -> tuple[EnginePlacement, ...]:
        """Engines of all pools."""
        return tuple(one for pool in self.pools for one in pool.engines)

    @property
    def named_pools(self) -> Mapping[str, PoolBlueprint]:
        """Pools by name, the one under test first."""
        if self.fitting is None:
            sides = [PREFILL_POOL] if self.experiment.prefill else []
        else:
            sides = [one.name for one in self.fitting.side_pools]
        return dict(zip((self.pool, *sides), self.pools, strict=True))


def experiment_began(
    plan: LabBlueprint, *, policies: str, at_unix_s: float, versions: Mapping[str, str]
) -> ExperimentBegan:
    """First event of this plan's history; ``policies`` is the subject's policy text."""
    experiment = plan.experiment
    spec = experiment.spec.model_dump(mode="json", by_alias=True)
    return ExperimentBegan(
        at_unix_s=at_unix_s,
        name=experiment.name,
        subject=plan.subject.name,
        scenario={"kind": "Scenario", "metadata": {"name": experiment.name}, "spec": spec},
        policies=policies,
        pool=plan.pool,
        time_scale=plan.time_scale,
        max_wait_s=plan.max_wait_s,
        service_s=experiment.service_s,
        rate_per_s=experiment.rate_per_s,
        seconds=experiment.seconds,
        seed=experiment.seed,
        engines=tuple(
            EngineRecord(name=one.name, zone=one.zone, slots=one.slots, slowness=one.slowness, pool=name)
            for name, pool in plan.named_pools.items()
            for one in pool.engines
        ),
        proxies=tuple(ProxyRecord(name=one.name, zone=one.zone, demand=one.demand) for one in experiment.proxies),
        versions=versions,
    )


def lab_blueprint(experiment: Experiment, subject: Subject) -> LabBlueprint:
    """Blueprint for this experiment and subject; raises PolicyFitError."""
    topology = experiment.spec.topology
    real = topology.engine == "vllm"
    deadline_s = experiment.spec.load.deadline
    if isinstance(subject, StaticSubject):
        if experiment.fallbacks:
            raise MissingPoolError(
                f"scenario {experiment.name} needs fallback pools, and preset {subject.name} has none; "
                "use policies"
            )
        gate = bool(topology.first_token_gate) or real
        model = REAL_MODEL if real else SIMULATED_MODEL
        stages = (Stage.DECODE, Stage.PREFILL) if experiment.prefill else (None,)
        return LabBlueprint(
            experiment=experiment,
            subject=subject,
            fitting=None,
            pools=tuple(
                PoolBlueprint(
                    model=model,
                    gate=gate,
                    service_s=experiment.service_s * (PREFILL_SHARE if stage is Stage.PREFILL else 1.0),
                    engines=experiment.prefill if stage is Stage.PREFILL else experiment.engines,
                    stage=stage,
                    adapter=experiment.spec.load.adapter or "",
                )
                for stage in stages
            ),
            pool=POOL,
            asking=RequestTemplate(
                deadline_s=deadline_s,
                model=experiment.spec.load.adapter or model,
                group_headers=group_headers(experiment.spec.load, experiment.service_s, None),
            ),
            time_scale=1.0,
            max_wait_s=ResilienceSpec().limits.max_wait,
        )
    fitting = policy_fit(subject.policies, experiment, pool=subject.pool, model=REAL_MODEL if real else None)
    fitted, shape = fitting.experiment, fitting.shape
    own = PoolBlueprint(
        model=fitting.model,
        gate=fitting.gate,
        service_s=fitted.service_s,
        engines=fitted.engines,
        stage=fitting.stage,
        adapter=fitted.spec.load.adapter or "",
    )
    sides = tuple(
        PoolBlueprint(
            model=one.model,
            gate=one.gate,
            service_s=one.service_s,
            engines=one.engines,
            stage=one.stage,
            adapter=own.adapter if one.model == own.model else "",
        )
        for one in fitting.side_pools
    )
    return LabBlueprint(
        experiment=fitted,
        subject=subject,
        fitting=fitting,
        pools=(own, *sides),
        pool=fitting.pool,
        asking=RequestTemplate(
            deadline_s=deadline_s,
            model=shape.model or fitting.model,
            headers=shape.headers,
            batch_headers=shape.batch_headers,
            group_headers=group_headers(experiment.spec.load, fitted.service_s, fitting.listener),
            path=shape.path,
            key=session_key(fitting.affinity),
        ),
        time_scale=fitting.time_scale,
        max_wait_s=fitting.max_wait_s,
    )


def shared_experiment(experiment: Experiment, subjects: Sequence[Subject]) -> Experiment:
    """The experiment for all these subjects: with engines as slow as the slowest policies expect."""
    for one in subjects:
        if isinstance(one, PolicySubject):
            experiment = lab_blueprint(experiment, one).experiment
    return experiment
