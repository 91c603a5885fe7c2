"""What an export gives back: manifests, and everything about the scenario that they do not say."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from chaos.faults.cluster_chaos import ClusterContext
from chaos.faults.fault import Fault
from chaos.faults.pod_labels import ClusterNames
from chaos.scenario.fault_timeline import fault_name
from chaos.scenario.placement import selected_targets
from chaos.scenario.scenario_model import FaultSpec, ScenarioSpec
from policies.quantity import format_duration

_WIDTH: Final = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRemark:
    """Something the manifests do not do as the lab does. ``mapped``: they do something like it all the same;
    ``is_fault``: it is about a fault, not about the scenario as a whole.
    """

    about: str
    why: str
    mapped: bool
    is_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestExport:
    """Manifests in the order in which they are applied, and what is to be known of them."""

    tool: str
    manifests: tuple[Mapping[str, Any], ...]
    remarks: tuple[ManifestRemark, ...]

    def text(self) -> str:
        """YAML for ``kubectl apply -f``, with the remarks as comments above it."""
        lines = [f"# Made by `switchgear-chaos export` for {self.tool}. What it does not say:"]
        lines += (
            f"# - {one.about}: {'differs' if one.mapped else 'not mapped'}: {one.why}" for one in self.remarks
        )
        documents = [
            yaml.safe_dump(_plain(one), sort_keys=False, allow_unicode=True, width=_WIDTH)
            for one in self.manifests
        ]
        return "\n".join(lines) + "\n" + "---\n".join(documents)


def _plain(value: Any) -> Any:
    """The same in the types that YAML's writer knows."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def object_name(*parts: str) -> str:
    """A Kubernetes name made of these parts: lower case, digits and dashes, at most 63."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")[:63].rstrip("-")


def scenario_remarks(spec: ScenarioSpec) -> Iterator[ManifestRemark]:
    """What no chaos tool of a cluster is told, because it is not theirs to do."""
    yield ManifestRemark(
        about="load",
        why="the tool asks nothing; let your own traffic, or a load generator, run beside it",
        mapped=False,
    )
    if spec.load.surges or spec.load.turns:
        yield ManifestRemark(about="surges and turns", why="they are the load generator's", mapped=False)
    yield ManifestRemark(
        about="hypothesis",
        why="goodput, waste and amplification are judged from the books of callers and engines, which a cluster "
        "does not keep; watch Switchgear's metrics and ledger instead",
        mapped=False,
    )
    if spec.abort.goodput_below_percent:
        after = format_duration(spec.abort.after)
        why = f"nothing looks at goodput; delete the manifests when it stays low for {after}"
        yield ManifestRemark(about="abort", why=why, mapped=False)
    yield ManifestRemark(
        about="seed",
        why="the tool draws pods by itself: another run hits others, and two faults may hit the same one",
        mapped=False,
    )


def target_remarks(strike: FaultSpec, number: int) -> Iterator[ManifestRemark]:
    """What a selector of pods cannot say."""
    name, target = fault_name(strike, number), strike.target
    if target.engine is not None or target.proxy is not None:
        yield ManifestRemark(about=name, why="pods have no numbers: one is drawn", mapped=True)
    if target.skip:
        yield ManifestRemark(
            about=name, why="nobody is left out: it may draw those another fault has", mapped=True
        )
    if strike.in_turn:
        yield ManifestRemark(
            about=name, why="each turn draws anew: some may be hit twice, some never", mapped=True
        )


def cluster_context(spec: ScenarioSpec, strike: FaultSpec, cluster: ClusterNames) -> ClusterContext:
    """What the manifests of one fault need besides its settings."""
    turns = len(selected_targets(spec, strike).names) if strike.in_turn else 1
    return ClusterContext(
        cluster=cluster,
        zone=strike.target.zone,
        zones=tuple(spec.topology.zones),
        lasts_s=strike.lasts,
        turn_s=strike.lasts / turns,
        service_time_s=spec.topology.service_time,
    )


def unmapped_faults(strikes: Sequence[FaultSpec], why_not: Callable[[Fault], str]) -> Iterator[ManifestRemark]:
    """The faults of a scenario that have no counterpart, each with its reason."""
    for number, strike in enumerate(strikes):
        if reason := why_not(strike.fault):
            yield ManifestRemark(about=fault_name(strike, number), why=reason, mapped=False, is_fault=True)
