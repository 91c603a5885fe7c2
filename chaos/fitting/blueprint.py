"""What a lab will be for one experiment and one subject, before anything of it stands. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.fitting.fit import Fitting, fit
from chaos.fitting.static_envoy import POOL
from chaos.fitting.subjects import PolicySubject, StaticSubject, Subject
from chaos.load.sender import Asking
from chaos.real_vllm.replica import MODEL as REAL_MODEL
from chaos.scenario.plan import EngineSpot, Experiment
from policies.resilience import ResilienceSpec

SIMULATED_MODEL: Final = "lab"
"""Of engines whose subject names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Engines of one pool that are wanted; ``service_s`` is the mean time a request takes one that is not slow."""

    model: str
    gate: bool
    service_s: float
    engines: tuple[EngineSpot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """Everything about a lab that is known beforehand.

    ``experiment`` is the one that will be done: policies may have made its engines slower. ``max_wait_s`` is what
    the subject lets a request wait; where it does not say, as long as Switchgear does by itself.
    """

    experiment: Experiment
    subject: Subject
    fitting: Fitting | None
    pools: tuple[Pool, ...]
    pool: str
    asking: Asking
    time_scale: float
    max_wait_s: float

    @property
    def engines(self) -> tuple[EngineSpot, ...]:
        """Of all pools."""
        return tuple(one for pool in self.pools for one in pool.engines)

    @property
    def named_pools(self) -> Mapping[str, Pool]:
        """The pools by their names, the one under test first."""
        sides = self.fitting.side_pools if self.fitting is not None else ()
        names = (self.pool, *(one.name for one in sides))
        return dict(zip(names, self.pools, strict=True))


def planned(experiment: Experiment, subject: Subject) -> Blueprint:
    """What stands for this experiment with this subject; FittingError when its policies cannot be rehearsed."""
    topology = experiment.spec.topology
    real = topology.engine == "vllm"
    deadline_s = experiment.spec.load.deadline
    if isinstance(subject, StaticSubject):
        gate = bool(topology.first_token_gate) or real
        model = REAL_MODEL if real else SIMULATED_MODEL
        own = Pool(model=model, gate=gate, service_s=experiment.service_s, engines=experiment.engines)
        return Blueprint(
            experiment=experiment,
            subject=subject,
            fitting=None,
            pools=(own,),
            pool=POOL,
            asking=Asking(deadline_s=deadline_s, model=model),
            time_scale=1.0,
            max_wait_s=ResilienceSpec().limits.max_wait,
        )
    fitting = fit(subject.policies, experiment, pool=subject.pool, model=REAL_MODEL if real else None)
    fitted, shape = fitting.experiment, fitting.shape
    own = Pool(model=fitting.model, gate=fitting.gate, service_s=fitted.service_s, engines=fitted.engines)
    sides = tuple(
        Pool(model=one.model, gate=one.gate, service_s=one.service_s, engines=one.engines)
        for one in fitting.side_pools
    )
    return Blueprint(
        experiment=fitted,
        subject=subject,
        fitting=fitting,
        pools=(own, *sides),
        pool=fitting.pool,
        asking=Asking(
            deadline_s=deadline_s,
            model=shape.model or fitting.model,
            headers=shape.headers,
            batch_headers=shape.batch_headers,
            path=shape.path,
        ),
        time_scale=fitting.time_scale,
        max_wait_s=fitting.max_wait_s,
    )


def common_experiment(experiment: Experiment, subjects: Sequence[Subject]) -> Experiment:
    """The experiment as all of these can do it: with engines as slow as any of their policies expects."""
    for one in subjects:
        if isinstance(one, PolicySubject):
            experiment = planned(experiment, one).experiment
    return experiment
