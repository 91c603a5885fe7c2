"""What live runs have shown, out of the results that the failover benchmark left."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SCENARIO: Final = "S1"
"""Half of the engines answers 500 after the work, for some time: the live kin of the published storm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResult:
    """One contestant in one live run, from the fault to the end."""

    title: str
    goodput_percent: float
    wasted_s: float
    calls_per_request: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStormResult:
    """Naive retries beside Switchgear, the same fault and load."""

    title: str
    load_percent: float
    naive: LiveResult
    switchgear: LiveResult

    @property
    def wasted_times(self) -> float:
        """How many times as much engine time naive retries waste."""
        return self.naive.wasted_s / max(self.switchgear.wasted_s, 1e-9)


def retry_storm(folder: Path) -> RetryStormResult | None:
    """The newest pair of runs that count, with the same load and seed; None where there is none."""
    found: dict[tuple[float, int], dict[str, Mapping[str, Any]]] = {}
    for path in sorted(folder.glob(f"{SCENARIO}.*.json")):
        one = json.loads(path.read_text(encoding="utf-8"))
        if one["scenario"] == SCENARIO and not one["bench"]["problems"]:
            found.setdefault((one["load_percent"], one["seed"]), {})[one["contestant"]] = one
    pairs = [one for one in found.values() if "naive" in one and "switchgear" in one]
    if not pairs:
        return None
    pair = max(pairs, key=lambda one: one["switchgear"]["made_at"])
    return RetryStormResult(
        title=pair["naive"]["scenario_title"],
        load_percent=pair["naive"]["load_percent"],
        naive=_side(pair["naive"]),
        switchgear=_side(pair["switchgear"]),
    )


def _side(one: Mapping[str, Any]) -> LiveResult:
    measures = one["measures"]
    return LiveResult(
        title=one["contestant_title"],
        goodput_percent=measures["both"]["goodput_percent"],
        wasted_s=measures["waste"]["wasted_s"],
        calls_per_request=measures["calls_per_request"],
    )
