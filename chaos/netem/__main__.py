"""The netem relay as a process: ``python -m chaos.netem --link engine:e0=127.0.0.1:8000 [--link ...]``.

Its first line on stdout gives the control URL and the port of each link::

    {"control": "http://127.0.0.1:PORT", "ports": {"engine:e0": 40001}}

SIGTERM ends it and resets its connections.

With ``--kernel`` or SWITCHGEAR_CHAOS_KERNEL every link crosses a veth pair of ``chaos.netem.kernel_link``.
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
    """Relay bytes until SIGTERM; return the reason if it could not, else an empty string."""
    rng = random.Random(seed)  # noqa: S311 -- repeatable jitter, no secret
    laid: dict[str, NetemLink] = {}
    cables: dict[str, KernelLink] = {}
    async with AsyncExitStack() as stack:
        if kernel:
            if (
                why := await unavailable_reason()
                if len(links) <= MOST
                else f"at most {MOST} kernel links per process"
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
    """Return 0 after SIGTERM, 1 if kernel links are unavailable, 2 on a usage error."""
    parser = argparse.ArgumentParser(prog="python -m chaos.netem", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--link",
        action="append",
        required=True,
        type=_link,
        metavar="NAME=HOST:PORT",
        help="link to relay (repeatable)",
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed of the jitter (default: %(default)s)")
    parser.add_argument(
        "--kernel",
        action="store_true",
        default=bool(os.environ.get(KERNEL_VARIABLE)),
        help=f"use the kernel's netem for latency and loss; needs root (also: {KERNEL_VARIABLE}=1)",
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
