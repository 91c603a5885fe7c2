"""A wire as a process: ``python -m chaos.netem --link engine:e0=127.0.0.1:8000 [--link ...]``.

Its first line on stdout says where it takes orders and where each link listens::

    {"control": "http://127.0.0.1:PORT", "ports": {"engine:e0": 40001}}

SIGTERM ends it, and resets what goes through it.

With ``--kernel``, or where SWITCHGEAR_CHAOS_KERNEL is set, every link crosses a cable of
``chaos.netem.kernel_link``.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from aiohttp import web

from chaos.netem.kernel_link import MOST, KernelLink, remove_stale_namespaces, unavailable_reason
from chaos.netem.netem_control import NetemControl
from chaos.netem.netem_link import NetemLink

KERNEL_VARIABLE: Final = "SWITCHGEAR_CHAOS_KERNEL"


async def serve(links: Mapping[str, tuple[str, int]], seed: int, *, kernel: bool) -> str:
    """Pass bytes on until SIGTERM; return why it did not, or nothing."""
    rng = random.Random(seed)  # noqa: S311 -- repeatable jitter, no secret
    laid: dict[str, NetemLink] = {}
    cables: dict[str, KernelLink] = {}
    async with AsyncExitStack() as stack:
        if kernel:
            if (
                why := await unavailable_reason()
                if len(links) <= MOST
                else f"a process lays {MOST} cables at most"
            ):
                return why
            await remove_stale_namespaces()
        for number, (name, to) in enumerate(links.items()):
            if kernel:
                cables[name] = await stack.enter_async_context(KernelLink(number))
                far = NetemLink(f"{name} (far end)", to, rng)
                await far.listen(cables[name].listener)
                stack.callback(far.close)
            laid[name] = NetemLink(name, cables[name].to if kernel else to, rng)
            await laid[name].listen()
            stack.callback(laid[name].close)
        runner = web.AppRunner(NetemControl(laid, cables).app(), access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        host, port = runner.addresses[0][:2]
        ports = {name: link.port for name, link in laid.items()}
        said = {"control": f"http://{host}:{port}", "ports": ports}
        print(json.dumps(said), flush=True)  # noqa: T201 -- the answer
        await ended.wait()
    return ""


def main(argv: Sequence[str]) -> int:
    """0 when it was told to end, 1 when it cannot do what it was asked, 2 when it was asked wrongly."""
    parser = argparse.ArgumentParser(prog="python -m chaos.netem", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--link", action="append", required=True, type=_link, metavar="NAME=HOST:PORT", help="may be repeated"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides the jitter (%(default)s)")
    parser.add_argument(
        "--kernel",
        action="store_true",
        default=bool(os.environ.get(KERNEL_VARIABLE)),
        help=f"latency and loss are netem's; needs root (also: {KERNEL_VARIABLE}=1)",
    )
    arguments = parser.parse_args(argv)
    why = asyncio.run(serve(dict(arguments.link), arguments.seed, kernel=arguments.kernel))
    if why:
        print(f"chaos.netem: {why}", file=sys.stderr)  # noqa: T201 -- the reason
    return 1 if why else 0


def _link(text: str) -> tuple[str, tuple[str, int]]:
    name, _, address = text.partition("=")
    host, _, port = address.rpartition(":")
    if not (name and host and port.isdecimal()):
        msg = f"{text!r} is not NAME=HOST:PORT"
        raise argparse.ArgumentTypeError(msg)
    return name, (host, int(port))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
