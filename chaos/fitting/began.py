"""The first event of a history: what stands there, for whom, and what will be done to it. Pure."""

from collections.abc import Mapping

from chaos.fitting.blueprint import Blueprint
from chaos.history.events import Began, EngineSeen, ProxySeen


def began(plan: Blueprint, *, policies: str, at_unix_s: float, versions: Mapping[str, str]) -> Began:
    """What a history of this plan begins with; ``policies`` is the text that the subject has."""
    experiment = plan.experiment
    spec = experiment.spec.model_dump(mode="json", by_alias=True)
    return Began(
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
            EngineSeen(name=one.name, zone=one.zone, slots=one.slots, slowness=one.slowness, pool=name)
            for name, pool in plan.named_pools.items()
            for one in pool.engines
        ),
        proxies=tuple(ProxySeen(name=one.name, zone=one.zone, demand=one.demand) for one in experiment.proxies),
        versions=versions,
    )
