"""Sentences for a terminal: wrapped at words with a hanging indent, whole on a pipe."""

import textwrap
from typing import Final

from command_line.table import terminal_width

_WIDEST: Final = 100
_NARROWEST: Final = 40


def wrapped(text: str) -> str:
    """The lines of ``text``, each wrapped for a terminal of 40 to 100 columns; as they are on a pipe."""
    columns = terminal_width()
    if columns is None:
        return text
    width = min(_WIDEST, max(_NARROWEST, columns))
    return "\n".join(part for line in text.split("\n") for part in _wrapped_line(line, width))


def _wrapped_line(line: str, width: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip(" ")))
    return textwrap.wrap(
        line, width, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False
    ) or [""]
