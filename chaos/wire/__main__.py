"""A wire as a process: ``python -m chaos.wire --link engine:e0=127.0.0.1:8000 [--link ...]``.

Its first line on stdout says where it takes orders and where each link listens::

    {"control": "http://127.0.0.1:PORT", "ports": {"engine:e0": 40001}}

SIGTERM ends it, and resets what goes through it.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
from collections.abc import Mapping, Sequence

from aiohttp import web

from chaos.wire.control import Control
from chaos.wire.link import WireLink


async def serve(links: Mapping[str, tuple[str, int]], seed: int) -> None:
    """Pass bytes on until SIGTERM."""
    rng = random.Random(seed)  # noqa: S311 -- repeatable jitter, no secret
    laid = {name: WireLink(name, to, rng) for name, to in links.items()}
    for link in laid.values():
        await link.listen()
    runner = web.AppRunner(Control(laid).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    host, port = runner.addresses[0][:2]
    ports = {name: link.port for name, link in laid.items()}
    print(json.dumps({"control": f"http://{host}:{port}", "ports": ports}), flush=True)  # noqa: T201 -- the answer
    await ended.wait()
    for link in laid.values():
        link.close()
    await runner.cleanup()


def main(argv: Sequence[str]) -> int:
    """0 when it was told to end, 2 when it was asked wrongly."""
    parser = argparse.ArgumentParser(prog="python -m chaos.wire", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--link", action="append", required=True, type=_link, metavar="NAME=HOST:PORT", help="may be repeated"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides the jitter (%(default)s)")
    arguments = parser.parse_args(argv)
    asyncio.run(serve(dict(arguments.link), arguments.seed))
    return 0


def _link(text: str) -> tuple[str, tuple[str, int]]:
    name, _, address = text.partition("=")
    host, _, port = address.rpartition(":")
    if not (name and host and port.isdecimal()):
        msg = f"{text!r} is not NAME=HOST:PORT"
        raise argparse.ArgumentTypeError(msg)
    return name, (host, int(port))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
