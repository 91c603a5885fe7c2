"""Versions as peers write them."""

import re


def parsed_version(text: str) -> tuple[int, ...]:
    """``1.40.0-dev`` as (1, 40, 0); empty if it does not begin with a number."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
