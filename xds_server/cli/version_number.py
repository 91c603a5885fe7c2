"""The number of a version of the policies, as an argument."""

from typing import Any, Final

import click

_MOST_DIGITS: Final = 9


class VersionNumber(click.ParamType):  # type: ignore[type-arg]  # it takes none before click 8.4
    """A whole number from 1; anything else is refused by where the numbers are."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        text = str(value)
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) > 0):
            self.fail(f"{text!r} is no version; `switchgear history` lists them by number", param, ctx)
        return int(text)
