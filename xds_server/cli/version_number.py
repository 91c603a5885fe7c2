"""The number of a version of the policies, as an argument; or its digest, where that is meant as well."""

import re
from typing import Any, Final

import click

_MOST_DIGITS: Final = 9
_DIGEST: Final = re.compile(r"[0-9a-f]{12,32}")


class VersionNumber(click.ParamType):  # type: ignore[type-arg]  # it takes none before click 8.4
    """A whole number from 1; anything else is refused by where the numbers are."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        text = str(value)
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) > 0):
            self.fail(f"{text!r} is no version; `switchgear history` lists them by number", param, ctx)
        return int(text)


class ExpectedVersion(VersionNumber):
    """A version by number or by how its digest begins, as text."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # type: ignore[override]  # a digest is no number
        """The text."""
        text = str(value)
        return text if not text or _DIGEST.fullmatch(text) else str(super().convert(value, param, ctx))
