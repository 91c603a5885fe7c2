"""The xDS tap as a process: ``python -m chaos.xds_tap --link xds:p0=127.0.0.1:18000 [--link ...]``.

Its first line on stdout gives the control URL and the port of each link. SIGTERM ends it.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web

from chaos.netem.netem_control import NetemControl
from chaos.netem.netem_link import NetemLink
from chaos.xds_tap.tap_control import TapControl
from chaos.xds_tap.xds_tap import XdsTap

LINK: Final = "xds:"


async def serve(control_planes: Mapping[str, tuple[str, int]]) -> None:
    """Relay streams until SIGTERM; the addresses are by proxy."""
    desk = TapControl()
    rng = random.Random(0)  # noqa: S311 -- repeatable jitter, no secret
    wires: dict[str, NetemLink] = {}
    for proxy, (host, port) in control_planes.items():
        tap = XdsTap(f"{host}:{port}", desk.note_of(proxy))
        desk.taps[proxy] = tap
        wire = NetemLink(f"{LINK}{proxy}", ("127.0.0.1", await tap.start()), rng)
        await wire.listen()
        wires[wire.name] = wire
    runner = web.AppRunner(desk.with_pages(NetemControl(wires).app()), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    host, port = runner.addresses[0][:2]
    ports = {name: wire.port for name, wire in wires.items()}
    print(json.dumps({"control": f"http://{host}:{port}", "ports": ports}), flush=True)  # noqa: T201 -- the answer
    await ended.wait()
    for wire in wires.values():
        wire.close()
    for tap in desk.taps.values():
        await tap.stop()
    await runner.cleanup()


def main(argv: Sequence[str]) -> int:
    """Return 0 after SIGTERM, 2 on a usage error."""
    parser = argparse.ArgumentParser(prog="python -m chaos.xds_tap", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--link",
        action="append",
        required=True,
        type=_link,
        metavar="xds:PROXY=HOST:PORT",
        help="xDS link to relay (repeatable)",
    )
    asyncio.run(serve(dict(parser.parse_args(argv).link)))
    return 0


def _link(text: str) -> tuple[str, tuple[str, int]]:
    name, _, address = text.partition("=")
    host, _, port = address.rpartition(":")
    if not (name.startswith(LINK) and name != LINK and host and port.isdecimal()):
        msg = f"{text!r} is not xds:PROXY=HOST:PORT"
        raise argparse.ArgumentTypeError(msg)
    return name.removeprefix(LINK), (host, int(port))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
