"""Ctrl-C ends a command with 130 and no traceback, also while modules are imported and while Python exits."""

import os
import signal
from types import FrameType
from typing import Final, NoReturn

INTERRUPTED: Final = 130
"""128 + SIGINT, as shells report it."""


def exit_on_interrupt() -> None:
    """Exit at once on SIGINT. A process that was started with SIGINT ignored keeps ignoring it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Raise ``KeyboardInterrupt`` on SIGINT again: asyncio installs its own handler only over Python's."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)
