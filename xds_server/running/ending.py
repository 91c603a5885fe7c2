"""How the process ends in good order: by a signal, or with one sentence of what does not work."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator

from xds_server.config import ConfigError


class StopError(Exception):
    """Ends the task group in good order."""


async def stopped(stop: asyncio.Event) -> None:
    """Raise ``StopError`` once it is time."""
    await stop.wait()
    raise StopError


@contextlib.contextmanager
def signals(stop: asyncio.Event) -> Iterator[None]:
    """Within it SIGTERM and SIGINT set ``stop``."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def first(errors: BaseExceptionGroup[ConfigError]) -> ConfigError:
    """The first error of a group of groups."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, ConfigError) else ConfigError(str(error))
