"""``switchgear plan stages``: prefill and decode engines of a route, and the KV caches between them."""

import math
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from chaos.planning.cli import plan_options
from chaos.planning.cli.plan_answer import (
    AnswerGrid,
    PlanAnswer,
    number,
    percent,
    plot_path,
    print_answer,
    seconds,
)
from chaos.planning.error import PlanError
from chaos.planning.fleet_capacity import WaitPromise
from chaos.planning.stage_capacity import (
    KvTransfer,
    StagedDemand,
    StageEngine,
    StageFleet,
    StagePlan,
    StageRoom,
    TwoStagePlan,
    two_stage_plan,
)
from command_line.output_format import OutputForm, output_option

_HOUR_S: Final = 3600.0
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)")
_UNITS: Final[dict[str, float]] = {
    "B": 1,
    **{f"{letter}B": 1000 ** (place + 1) for place, letter in enumerate("kMGT")},
    **{f"{letter}iB": 1024 ** (place + 1) for place, letter in enumerate("KMGT")},
}


def size(value: str) -> float:
    """Parse a number of bytes with its unit."""
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise click.BadParameter(f"{value!r} is not a size: write 128KiB, 320kB or 12.5GB")
    return float(found[1]) * _UNITS[found[2]]


@click.command(name="stages")
@click.option("--arrivals", "arrivals_per_s", type=float, help="Requests per second.")
@click.option("--users", type=float, help="Users at the peak; with --per-user, instead of --arrivals.")
@click.option("--per-user", "per_user_hour", type=float, help="Requests of one user per hour.")
@click.option("--input-tokens", type=float, help="Mean tokens of a prompt.  [required]")
@click.option("--output-tokens", type=float, help="Mean tokens of an answer.  [required]")
@click.option("--prefill-rate", type=float, help="Prompt tokens per second of one prefill engine.  [required]")
@click.option(
    "--prefill-slots", type=int, default=1, show_default=True, help="Prompts that one engine computes at a time."
)
@click.option(
    "--decode-rate", type=float, help="Tokens per second of one decode engine with all slots busy.  [required]"
)
@click.option("--decode-slots", type=int, help="Answers that one decode engine generates at a time.  [required]")
@click.option("--kv-bytes", type=size, metavar="SIZE", help="KV cache of one token, e.g. 128KiB.  [required]")
@click.option(
    "--bandwidth",
    type=size,
    metavar="SIZE",
    help="Bytes per second of one engine's link for KV caches, e.g. 12.5GB.  [required]",
)
@click.option(
    "--link-load",
    type=plan_options.share,
    metavar="SHARE",
    default="70%",
    show_default=True,
    help="Largest share of a link in use.",
)
@click.option(
    "--kv-memory", type=size, metavar="SIZE", help="Memory of one prefill engine for KV caches; judged if given."
)
@click.option("--prefill-engines", type=int, help="Prefill engines to judge.  [default: needed, and one]")
@click.option("--decode-engines", type=int, help="Decode engines to judge.  [default: needed, and one]")
@click.option("--survive-engine", is_flag=True, help="Exit 0 only if each stage survives the loss of an engine.")
@plan_options.promise_options
@output_option()
@plan_options.plot_option
def command(
    *,
    wait_s: float,
    late: float,
    kv_memory: float | None,
    survive_engine: bool,
    output: OutputForm,
    plot: Path | None,
    **asked: Any,
) -> int:
    """Size the prefill and the decode engines of a route, and what waits between them.

    The wait target holds for each stage: at most --late of the requests wait longer than --max-wait for a slot.

    Exit code: 0 if both stages meet it, and KV caches fit --kv-memory; 1 if not; 2 for invalid or missing numbers.
    """
    plot, promise = plot_path(plot), plan_options.promise(wait_s, late)
    demand = _demand(asked)
    fleet = StageFleet(
        prefill=StageEngine(
            tokens_per_s=_given(asked, "prefill_rate"), slots=int(_given(asked, "prefill_slots", least=1))
        ),
        decode=StageEngine(
            tokens_per_s=_given(asked, "decode_rate"), slots=int(_given(asked, "decode_slots", least=1))
        ),
        prefill_engines=_engines(asked, "prefill_engines"),
        decode_engines=_engines(asked, "decode_engines"),
    )
    if not 0 < asked["link_load"] < 1:
        raise PlanError(f"--link-load {asked['link_load']:g}: must be between 0 and 1 (0 % and 100 %)")
    transfer = KvTransfer(
        bytes_per_token=_given(asked, "kv_bytes"),
        bandwidth_bytes_per_s=_given(asked, "bandwidth"),
        most_load=asked["link_load"],
    )
    found = two_stage_plan(demand, fleet, transfer, promise)
    fits = kv_memory is None or _kept_bytes(found, demand, transfer) <= kv_memory
    stages = (found.prefill, found.decode)
    answer = PlanAnswer(
        question="Prefill and decode engines",
        data={
            "demand": asdict(demand),
            "promise": asdict(promise),
            "prefill": _data(found.prefill),
            "decode": _data(found.decode),
            "transfer": asdict(found.transfer),
            "prefill_cache_bytes": _kept_bytes(found, demand, transfer),
            "fits_kv_memory": None if kv_memory is None else fits,
        },
        grids=(_needs_grid(found, promise), _transfer_grid(found, demand, transfer)),
        notes=tuple(_notes(found, demand, kv_memory=kv_memory, fits=fits)),
        yes=fits
        and all(one.whole.kept for one in stages)
        and (not survive_engine or all(one.without_one.kept for one in stages)),
        draw=lambda axes: _draw(axes, found, demand),
    )
    return print_answer(answer, output=output, plot=plot)


def _demand(asked: dict[str, Any]) -> StagedDemand:
    users, each = asked["users"], asked["per_user_hour"]
    arrivals = asked["arrivals_per_s"]
    if (users is None) != (each is None):
        raise click.UsageError("--users and --per-user belong together")
    if arrivals is not None and users is not None:
        raise click.UsageError("--users excludes --arrivals")
    if arrivals is None:
        if users is None:
            raise click.UsageError("missing --arrivals, or --users with --per-user")
        for name, value in (("--users", users), ("--per-user", each)):
            if not 0 <= value < math.inf:
                raise PlanError(f"{name} {value:g}: must be finite and not negative")
        arrivals = users * each / _HOUR_S
    if not 0 <= arrivals <= plan_options.MOST_ARRIVALS_PER_S:
        raise PlanError(f"--arrivals {arrivals:g}: must be between 0 and 1e9")
    return StagedDemand(
        arrivals_per_s=arrivals,
        input_tokens=_given(asked, "input_tokens", least=1),
        output_tokens=_given(asked, "output_tokens", least=1),
    )


def _given(asked: dict[str, Any], name: str, *, least: float = 0.0) -> float:
    """A required number above 0 and at least ``least``; errors name its flag."""
    flag, value = f"--{name.replace('_', '-')}", asked[name]
    if value is None:
        raise click.UsageError(f"missing {flag}")
    if not 0 < value < math.inf or value < least:
        raise PlanError(f"{flag} {value:g}: must be finite and {f'at least {least:g}' if least else 'above 0'}")
    return float(value)


def _engines(asked: dict[str, Any], name: str) -> int | None:
    return None if asked[name] is None else int(_given(asked, name, least=1))


def _kept_bytes(found: TwoStagePlan, demand: StagedDemand, transfer: KvTransfer) -> float:
    """KV caches at one prefill engine: of prompts that it computes, and of those that wait."""
    room = found.prefill.whole
    computing = room.now.utilization * room.now.slots / room.engines
    return computing * demand.input_tokens * transfer.bytes_per_token + found.transfer.waiting_bytes


def _data(stage: StagePlan) -> dict[str, Any]:
    return {
        **asdict(stage),
        "needs": {**asdict(stage.needs), "engines": stage.needs.engines},
        "kept": stage.whole.kept,
        "kept_without_one": stage.without_one.kept,
    }


def _needs_grid(found: TwoStagePlan, promise: WaitPromise) -> AnswerGrid:
    return AnswerGrid(
        title=f"At most {percent(promise.late)} waiting longer than {seconds(promise.wait_s)} for a slot",
        columns=(
            "stage",
            "engines",
            "needed",
            "demand",
            "in flight",
            "mean wait",
            "link",
            "max arrivals",
            "headroom",
        ),
        rows=tuple(
            _row(name, stage, room)
            for title, stage in (("prefill", found.prefill), ("decode", found.decode))
            for name, room in ((title, stage.whole), (f"{title}, one lost", stage.without_one))
        ),
    )


def _row(name: str, stage: StagePlan, room: StageRoom) -> tuple[str, ...]:
    return (
        name,
        str(room.engines),
        str(stage.needs.engines),
        _load(room.now.pressure),
        number(room.now.in_flight),
        seconds(room.now.wait_mean_s),
        _load(room.link_load),
        f"{number(room.most_arrivals_per_s)}/s",
        f"{100 * room.head_room:+.3g} %",
    )


def _load(share: float) -> str:
    return "∞" if math.isinf(share) else percent(share) if share < 1 else f"{100 * share:.3g} %"


def _transfer_grid(found: TwoStagePlan, demand: StagedDemand, transfer: KvTransfer) -> AnswerGrid:
    way = found.transfer
    return AnswerGrid(
        title="KV caches, and the first token",
        columns=("figure", "value"),
        rows=(
            ("KV cache of a prompt", _bytes(way.bytes_per_request)),
            ("transfer, idle link", seconds(way.idle_s)),
            ("transfer, mean", seconds(way.mean_s)),
            ("prompts that wait for a transfer or a decode slot", number(way.waiting_requests)),
            ("KV caches that wait at one prefill engine", _bytes(way.waiting_bytes)),
            ("with those of prompts in progress", _bytes(_kept_bytes(found, demand, transfer))),
            ("first token, mean", seconds(way.first_token_s)),
        ),
    )


def _bytes(value: float) -> str:
    if math.isinf(value):
        return "∞"
    for unit in ("TB", "GB", "MB", "kB"):
        if value >= _UNITS[unit]:
            return f"{value / _UNITS[unit]:.3g} {unit}"
    return f"{value:.3g} B"


def _notes(found: TwoStagePlan, demand: StagedDemand, *, kv_memory: float | None, fits: bool) -> Iterator[str]:
    yield (
        f"{number(demand.arrivals_per_s)} requests/s need {found.prefill.needs.engines} prefill engines and "
        f"{found.decode.needs.engines} decode engines; one more of each survives the loss of an engine."
    )
    for name, stage in (("Prefill", found.prefill), ("Decode", found.decode)):
        if stage.needs.by_link > stage.needs.by_slots:
            yield (f"{name}: slots need {stage.needs.by_slots} engines, but links {stage.needs.by_link}.")
    if kv_memory is not None and not fits:
        yield "The KV caches of a prefill engine do not fit --kv-memory: prompts wait although slots are free."
    yield (
        "While prefill engines are full or out, no engine is named, and decode engines compute prompts too: plan "
        "decode engines with room for that, or accept the wait."
    )
    yield (
        "Waits follow M/M/c in each stage: Poisson arrivals, exponential times, one queue for all slots, no "
        "admission limit. Transfers share links (processor sharing), and every prompt is prefilled remotely. A KV "
        "cache whose caller has left stays until the engine's own time limit, and is not counted."
    )


def _draw(axes: Any, found: TwoStagePlan, demand: StagedDemand) -> None:
    names = ("prefill", "decode")
    rooms = (found.prefill, found.decode)
    places = range(len(names))
    axes.bar(
        [one - 0.2 for one in places], [one.whole.most_arrivals_per_s for one in rooms], 0.4, label="all engines"
    )
    axes.bar(
        [one + 0.2 for one in places],
        [one.without_one.most_arrivals_per_s for one in rooms],
        0.4,
        label="one lost",
    )
    axes.axhline(demand.arrivals_per_s, color="black", linestyle=":", label="arrivals")
    axes.set_xticks(list(places), names)
    axes.set(ylabel="requests per second that keep the wait target", ylim=(0, None))
    axes.legend()
