"""``switchgear serve``: run the control plane.

The flags are the fields of ``ServeConfig``; each has an environment variable, such as ``SWITCHGEAR_LISTEN``. When
proxies can connect, one line of JSON with both addresses goes to stdout: scripts read the ports chosen for port 0.
"""

import asyncio
import dataclasses
import gc
import json
import sys
import time
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import structlog

from engine.address import ListenAddress
from engine.allocator import limit_arenas, trim_memory
from engine.grpc_operations import GrpcEventLoop
from policies.quantity import format_duration, parse_duration
from xds_server.app import log_config
from xds_server.app.application import BoundAddresses, serve
from xds_server.app.policy_feed import Outlet
from xds_server.serve_config import ENVIRONMENT_PREFIX, ConfigError, ServeConfig, address_of

CRASHED: Final = 70
"""Exit code after a bug (EX_SOFTWARE of sysexits.h); 2 is a usage error."""


COLLECT_EACH_S: Final = 15.0
"""Interval of garbage collection; one takes a few milliseconds. Peers that come and go all the time leave 2 000
blocks a second in cycles of gRPC and asyncio.
"""

FULL_SHARE: Final = 5e-4
"""Share of time for full collections, which also return free memory: one of 7 ms each 15 s, or of 100 ms each
3 minutes. What is alive during any collection and then becomes garbage waits for the next full one.
"""

FULL_EACH_S: Final = 3_600.0
"""Longest time between full collections."""


def _address(text: str) -> ListenAddress:
    try:
        return address_of(text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _option(field: "dataclasses.Field[Any]", hint: Any) -> click.Option:
    """The command line option of one setting."""
    name = field.metadata["flag"] or field.name.removesuffix("_s").replace("_", "-")
    settings: dict[str, Any] = {
        "help": field.metadata["help"],
        "envvar": f"{ENVIRONMENT_PREFIX}_{(field.metadata['variable'] or name).replace('-', '_').upper()}",
        "show_envvar": True,
    }
    if field.default is not dataclasses.MISSING and field.default not in (None, "", ()):
        shown = format_duration(field.default) if hint is float else field.default
        settings |= {"default": str(shown) if hint in (ListenAddress, float) else shown, "show_default": True}
    if isinstance(hint, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        of_paths = typing.get_args(hint)[0] is Path
        settings |= {"type": click.Path(path_type=Path) if of_paths else str, "multiple": True}
    elif typing.get_origin(hint) is typing.Literal:
        settings["type"] = click.Choice(typing.get_args(hint))
    elif hint is bool:
        settings["is_flag"] = True
        if field.default:
            return click.Option([f"--{name}/--no-{name}", field.name], **settings)
    elif hint is str:
        settings |= {"type": str, "metavar": "TEXT", "default": field.default}
    elif hint is Path:
        settings["type"] = click.Path(path_type=Path)
    elif hint is ListenAddress:
        settings |= {"type": _address, "metavar": "HOST:PORT"}
    else:
        settings |= {"type": _seconds, "metavar": "DURATION"}
    short = [field.metadata["short"]] if field.metadata["short"] else []
    return click.Option([f"--{name}", *short, field.name], **settings)


def options() -> list[click.Parameter]:
    """Every setting as an option."""
    hints = typing.get_type_hints(ServeConfig)
    return [_option(field, hints[field.name]) for field in dataclasses.fields(ServeConfig)]


def _settled(listening: BoundAddresses) -> None:
    """Collect the garbage of the start, collect rarely from now on, and announce the addresses.

    The start leaves 14 MB in cycles, which would stay until the first collection minutes later.
    """
    gc.collect()
    gc.freeze()  # what exists now stays
    # Reports come and go by the thousand without cycles. By default every few hundred start a collection: a third
    # of the work of reading 1 000 agents (benchmarks/agents.py).
    gc.set_threshold(50_000, 20, 50)
    asyncio.get_running_loop().call_later(COLLECT_EACH_S, _collect, 0.0)
    _announce(listening)


def _collect(full_from_s: float) -> None:
    """Collect recent garbage often, and all of it as often as ``FULL_SHARE`` allows; then return free memory.

    gRPC and asyncio leave cycles for each call and connection. Without this, memory grows by 5 MB in the 15
    minutes until 50 000 objects start a collection, and not all of it is returned. What floods leave free in the
    heap is below the growth from which ``MemoryGuard`` returns it, and adds up.
    """
    now_s = time.monotonic()
    if now_s < full_from_s:
        gc.collect(0)
    else:
        began_s = time.thread_time()
        gc.collect()
        trim_memory()
        full_from_s = now_s + min((time.thread_time() - began_s) / FULL_SHARE, FULL_EACH_S)
    asyncio.get_running_loop().call_later(COLLECT_EACH_S, _collect, full_from_s)


def _settled_in_text(listening: BoundAddresses) -> None:
    _settled(listening)
    click.echo(f"serving xDS on {listening.xds}, admin on {listening.admin}", err=True)


def _print_waiting(line: str) -> None:
    click.echo(line, err=True)


def _log_waiting(line: str) -> None:
    structlog.get_logger().info("serve.waiting", reason=line)


def _announce(listening: BoundAddresses) -> None:
    click.echo(json.dumps({"xds": str(listening.xds), "admin": str(listening.admin)}))
    sys.stdout.flush()


def _run(**settings: Any) -> int:
    """Run the control plane until SIGTERM or SIGINT.

    Exit code: 0 stopped by a signal, 2 invalid settings, 70 after a bug.
    """
    return run(settings)


def run(settings: Mapping[str, Any], outlets: Sequence[Outlet] = ()) -> int:
    """Run the control plane with further ``outlets`` for its decisions."""
    try:
        config = ServeConfig(**settings)
        log_config.configure(config.log_format, config.log_level)
        # Policies load in a thread: return the interpreter soon to the loop that serves proxies.
        sys.setswitchinterval(0.001)
        limit_arenas()
        text = config.log_format == "text"
        on_listening = _settled_in_text if text else _settled
        with asyncio.Runner(loop_factory=GrpcEventLoop) as runner:
            runner.run(serve(config, on_listening, outlets, on_waiting=_print_waiting if text else _log_waiting))
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    except Exception:  # noqa: BLE001 - logs the reason of the exit
        structlog.get_logger().exception("serve.crashed")
        return CRASHED
    return 0


command = click.Command("serve", callback=_run, params=options(), help=_run.__doc__)
