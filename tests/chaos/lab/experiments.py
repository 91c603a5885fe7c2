"""Small experiments, made by hand."""

from collections.abc import Sequence
from typing import Any

from chaos.scenario.experiment_plan import Experiment
from chaos.scenario.resolve_experiment import resolve_experiment
from chaos.scenario.scenario_model import Scenario


def experiment(
    *faults: dict[str, Any],
    engines: int = 4,
    slots: int = 4,
    proxies: int = 1,
    seconds: float = 8.0,
    zones: Sequence[str] = ("a",),
    topology: dict[str, Any] | None = None,
    load: dict[str, Any] | None = None,
    **spec: Any,
) -> Experiment:
    """Identical engines at 60 % load, unless a rate is given; scenario settings are as in YAML."""
    expected = {
        "title": "made by hand",
        "incident": "none",
        "topology": {
            "zones": list(zones),
            "engines": [{"count": engines, "slots": slots}],
            "proxies": [{"count": proxies}],
            **(topology or {}),
        },
        "load": {**({} if load and "perSecond" in load else {"percent": 60}), **(load or {})},
        "lasts": f"{seconds}s",
        "faults": list(faults),
        **spec,
    }
    return resolve_experiment(Scenario.model_validate({"metadata": {"name": "by-hand"}, "spec": expected}))
