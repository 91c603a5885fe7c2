"""A terminal that is redrawn: the screen of ``--watch``."""

import shutil
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_END_OF_LINE: Final = "\x1b[K\n"
_CLEAR_BELOW: Final = "\x1b[J"


class LiveScreen:
    """The alternate screen of the terminal; what was there before comes back at the end."""

    def __enter__(self) -> Self:
        sys.stdout.write(_ENTER)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()

    def show(self, lines: Sequence[str]) -> None:
        """Draw these lines from the top, as many as there is room for."""
        height = shutil.get_terminal_size().lines
        shown = list(lines[: height - 1])
        if len(lines) > len(shown):
            shown[-1] = f"... {len(lines) - len(shown) + 1} more lines"
        sys.stdout.write(_HOME + "".join(f"{line}{_END_OF_LINE}" for line in shown) + _CLEAR_BELOW)
        sys.stdout.flush()
