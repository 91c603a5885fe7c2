"""``switchgear-chaos inject``: one fault in a running lab, for as long as this command runs."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import click
import yaml

from chaos.cli.fault_text import known_fault
from chaos.cli.interruption import run_until_signal
from chaos.cli.resource_names import complete_faults


@click.command(name="inject")
@click.argument("kind", metavar="FAULT", shell_complete=complete_faults)
@click.option(
    "--lab", required=True, metavar="URL", help="Control port of the lab: `lab` in the first line it prints."
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set a field of the fault. Repeatable."
)
@click.option("--zone", help="Target this zone.")
@click.option("--region", help="Target this region.")
@click.option("--fallback", type=int, help="Target engines of the fallback pool with this index, from 0.")
@click.option("--stage", type=click.Choice(["prefill"]), help="Target engines of the prefill pool.")
@click.option("--engine", type=int, help="Target the engine with this index in its pool, from 0.")
@click.option("--proxy", type=int, help="Target the Envoy with this index, from 0.")
@click.option("--fraction", type=float, help="Target this fraction of them, 0 to 1.")
@click.option("--count", type=int, help="Target this number of them.")
@click.option("--for", "lasts", metavar="DURATION", help="Heal after this time, e.g. 10s. [default: at Ctrl-C]")
def command(*, kind: str, lab: str, settings: tuple[str, ...], lasts: str | None, **target: Any) -> int:
    """Inject FAULT into a running lab; `switchgear-chaos get faults` lists the kinds.

    The fault is healed after --for, at Ctrl-C, and when this command dies.

    Exit code: 0 injected and healed, 1 refused by the lab, 2 usage error or no lab.
    """
    known_fault(kind)
    order = {
        "fault": {"kind": kind, **dict(_setting(one) for one in settings)},
        "target": {name: value for name, value in target.items() if value is not None},
        **({} if lasts is None else {"lasts": lasts}),
    }
    try:
        return asyncio.run(run_until_signal(_hold(lab.rstrip("/"), order)))
    except asyncio.CancelledError:
        click.echo("healed")
        return 0
    except aiohttp.InvalidURL as problem:
        raise click.ClickException(f"--lab {lab}: write http://127.0.0.1:PORT, as the lab printed it") from problem
    except aiohttp.ClientConnectorError as problem:
        raise click.ClickException(
            f"{lab}: no lab listens here; start one with `switchgear-chaos lab`"
        ) from problem
    except json.JSONDecodeError as problem:
        raise click.ClickException(f"{lab}: the server there is not a lab") from problem
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError) as problem:
        raise click.ClickException(f"{lab}: the lab stopped, and the fault with it") from problem
    except aiohttp.ClientError as problem:
        raise click.ClickException(f"{lab}: {problem}") from problem


async def _hold(lab: str, order: Mapping[str, Any]) -> int:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(f"{lab}/v1/faults", json=order) as answer,
    ):
        if answer.status != 200:
            body = await answer.json(content_type=None)
            click.echo(f"refused: {body.get('error', body) if isinstance(body, dict) else body}", err=True)
            return 1
        healed = False
        async for line in answer.content:
            record = json.loads(line)
            healed = record.get("healed", False)
            click.echo(
                "healed" if healed else f"{order['fault']['kind']} injected: {', '.join(record['targets'])}"
            )
        return 0 if healed else 1


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.ClickException(f"--set {text}: write NAME=VALUE, e.g. --set factor=4")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as problem:
        raise click.ClickException(f"--set {text}: the value is not valid YAML") from problem
