"""The Dockerfiles of ``deploy/images`` as instructions."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from deploy import render

IMAGES: Final = sorted((render.DEPLOY / "images").glob("*.Dockerfile"))


def image_name(path: Path) -> str:
    """Such as ``control-plane``."""
    return path.name.removesuffix(".Dockerfile")


def instructions(path: Path) -> Iterator[tuple[str, str]]:
    """Instructions with their arguments, continuation lines joined."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, rest = line.partition(" ")
        yield name, rest.strip()


def stages(path: Path) -> Sequence[Sequence[tuple[str, str]]]:
    """Instructions of each stage; the first is its FROM."""
    found: list[list[tuple[str, str]]] = []
    for instruction in instructions(path):
        if instruction[0] == "FROM":
            found.append([])
        found[-1].append(instruction)
    return found


def base_image(path: Path) -> str:
    """The image that all stages start from, such as ``python:3.11.14-slim-bookworm``."""
    (name,) = {start.split()[0] for (_, start), *_ in stages(path)}
    return name
