"""The version of this distribution."""

import platform
from importlib.metadata import version

_DISTRIBUTION = "switchgear"


def client_version() -> dict[str, str]:
    """Version of the installed commands and of their Python."""
    return {"version": version(_DISTRIBUTION), "python": platform.python_version()}


def short_version(program: str) -> str:
    """What ``--version`` prints."""
    return f"{program}, version {version(_DISTRIBUTION)}"
