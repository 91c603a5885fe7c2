"""``switchgear-chaos inject``: one fault in a lab that is held open, for as long as this command runs."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import click
import yaml

from chaos.cli.interruption import run_until_signal
from chaos.scenario.scenario_schema import fault_kinds
from policies.findings import did_you_mean


@click.command(name="inject")
@click.argument("kind", metavar="FAULT")
@click.option("--lab", required=True, metavar="URL", help="The lab's control port, as it said when it started.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the fault; may be repeated."
)
@click.option("--zone", help="Hit those of this zone.")
@click.option("--engine", type=int, help="Hit the engine of this number, from 0.")
@click.option("--proxy", type=int, help="Hit the Envoy of this number, from 0.")
@click.option("--fraction", type=float, help="Hit so large a part of them.")
@click.option("--count", type=int, help="Hit so many of them.")
@click.option("--for", "lasts", metavar="DURATION", help="Heal after this long, such as 10s; else at Ctrl-C.")
def command(*, kind: str, lab: str, settings: tuple[str, ...], lasts: str | None, **target: Any) -> int:
    """Break something in the lab at URL: FAULT is a kind that `switchgear-chaos faults` lists.

    It is healed when its time is over, at Ctrl-C, and when this command dies. Exits 0 when it has bitten and is
    healed, 1 when the lab cannot do it, 2 when asked wrongly.
    """
    known = fault_kinds()
    if kind not in known:
        hint = did_you_mean(kind, known) or "`switchgear-chaos faults` lists them"
        raise click.ClickException(f"there is no fault {kind}: {hint}")
    order = {
        "fault": {"kind": kind, **dict(_setting(one) for one in settings)},
        "target": {name: value for name, value in target.items() if value is not None},
        **({} if lasts is None else {"lasts": lasts}),
    }
    try:
        return asyncio.run(run_until_signal(_held(lab.rstrip("/"), order)))
    except asyncio.CancelledError:
        click.echo("healed")
        return 0
    except aiohttp.InvalidURL as problem:
        raise click.ClickException(f"--lab {lab}: write http://127.0.0.1:PORT, as the lab said it") from problem
    except aiohttp.ClientConnectorError as problem:
        raise click.ClickException(f"{lab}: there is no lab; `switchgear-chaos lab` holds one open") from problem
    except json.JSONDecodeError as problem:
        raise click.ClickException(f"{lab}: what answers there is no lab") from problem
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError) as problem:
        raise click.ClickException(f"{lab}: the lab went away meanwhile, and what was broken with it") from problem
    except aiohttp.ClientError as problem:
        raise click.ClickException(f"{lab}: {problem}") from problem


async def _held(lab: str, order: Mapping[str, Any]) -> int:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(f"{lab}/v1/faults", json=order) as answer,
    ):
        if answer.status != 200:
            said = await answer.json(content_type=None)
            click.echo(f"refused: {said.get('error', said) if isinstance(said, dict) else said}", err=True)
            return 1
        healed = False
        async for line in answer.content:
            record = json.loads(line)
            healed = record.get("healed", False)
            click.echo("healed" if healed else f"{order['fault']['kind']} bites: {', '.join(record['targets'])}")
        return 0 if healed else 1


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.ClickException(f"--set {text}: write NAME=VALUE, such as --set factor=4")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as problem:
        raise click.ClickException(f"--set {text}: the value cannot be read") from problem
