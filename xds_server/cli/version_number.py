"""A policy version as an argument: its number, or its digest where allowed."""

import re
from typing import Any, Final

import click

_MOST_DIGITS: Final = 9
_DIGEST: Final = re.compile(r"[0-9a-f]{12,32}")


class VersionNumber(click.ParamType):  # type: ignore[type-arg]  # it takes none before click 8.4
    """A whole number from 1; the error names the command that lists them."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        text = str(value)
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) > 0):
            self.fail(f"{text!r} is not a version number; `switchgear history` lists them", param, ctx)
        return int(text)


class ExpectedVersion(VersionNumber):
    """A version by number or digest prefix, as text."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # type: ignore[override]  # digests are text
        """The text."""
        text = str(value)
        return text if not text or _DIGEST.fullmatch(text) else str(super().convert(value, param, ctx))
