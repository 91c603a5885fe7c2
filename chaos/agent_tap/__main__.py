"""The agent tap as a process: ``python -m chaos.agent_tap --link agent:e0=127.0.0.1:9000 [--link ...]``.

Its first line on stdout gives the control URL and the port of each link::

    {"control": "http://127.0.0.1:PORT", "ports": {"agent:e0": 40001}}

``PUT /rules/NAME`` with ``{"engine": "e0", "verdict": "hung"}`` or ``{"engine": "e0", "clock_skew_s": 600}``
falsifies that engine's reports, ``DELETE /rules/NAME`` stops it, ``GET /rules`` lists the active rules. SIGTERM
ends the process.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from aiohttp import web

from chaos.agent_tap.agent_link import AgentLink
from chaos.agent_tap.report_rules import ReportRule, ReportRuleError, parse_report_rule

_PREFIX = "agent:"


class AgentTapControl:
    """Active rules by name."""

    def __init__(self, links: Mapping[str, AgentLink]) -> None:
        self._links = links
        self._lies: dict[str, ReportRule] = {}

    def app(self) -> web.Application:
        """Routes of the control port."""
        app = web.Application()
        app.router.add_put("/rules/{name}", self._put)
        app.router.add_delete("/rules/{name}", self._delete)
        app.router.add_get("/rules", self._all)
        return app

    async def _put(self, request: web.Request) -> web.Response:
        try:
            lie = parse_report_rule(await request.read())
        except ReportRuleError as problem:
            return web.json_response({"error": str(problem)}, status=400)
        if lie.engine not in self._links:
            return web.json_response({"error": f"engine: {lie.engine!r} has no agent link"}, status=400)
        self._lies[request.match_info["name"]] = lie
        self._tell(lie.engine)
        return web.json_response(asdict(lie))

    async def _delete(self, request: web.Request) -> web.Response:
        lie = self._lies.pop(request.match_info["name"], None)
        if lie is not None:
            self._tell(lie.engine)
        return web.json_response(None)

    async def _all(self, _request: web.Request) -> web.Response:
        return web.json_response({name: asdict(lie) for name, lie in self._lies.items()})

    def _tell(self, engine: str) -> None:
        self._links[engine].set_rule([lie for lie in self._lies.values() if lie.engine == engine])


async def serve(agents: Mapping[str, str]) -> None:
    """Relay reports until SIGTERM; ``agents`` are addresses by engine."""
    links = {engine: AgentLink(address) for engine, address in agents.items()}
    for link in links.values():
        await link.listen()
    runner = web.AppRunner(AgentTapControl(links).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    host, port = runner.addresses[0][:2]
    ports = {f"{_PREFIX}{engine}": link.port for engine, link in links.items()}
    print(json.dumps({"control": f"http://{host}:{port}", "ports": ports}), flush=True)  # noqa: T201 -- the answer
    await ended.wait()
    await runner.cleanup()
    await asyncio.gather(*(link.close() for link in links.values()))


def main(argv: Sequence[str]) -> int:
    """Return 0 after SIGTERM, 2 on a usage error."""
    parser = argparse.ArgumentParser(prog="python -m chaos.agent_tap", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--link",
        action="append",
        required=True,
        type=_link,
        metavar="agent:ENGINE=HOST:PORT",
        help="agent link to relay (repeatable)",
    )
    asyncio.run(serve(dict(parser.parse_args(argv).link)))
    return 0


def _link(text: str) -> tuple[str, str]:
    name, _, address = text.partition("=")
    if not name.startswith(_PREFIX) or not address.rpartition(":")[2].isdecimal():
        msg = f"{text!r} is not {_PREFIX}ENGINE=HOST:PORT"
        raise argparse.ArgumentTypeError(msg)
    return name.removeprefix(_PREFIX), address


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
