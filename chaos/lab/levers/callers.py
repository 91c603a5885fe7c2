"""Callers who ask more, ask again, or come back all at once."""

from typing import ClassVar

from chaos.faults.pulls import Callers, Pull
from chaos.lab.site import Site


class CallersLever:
    """Changes the running load."""

    handles: ClassVar[tuple[type, ...]] = (Callers,)

    def __init__(self, site: Site) -> None:
        self._load = site.load

    def refusal(self, pull: Pull) -> str:  # noqa: ARG002 -- there are always callers
        return ""

    async def pull(self, pull: Pull) -> None:
        assert isinstance(pull, Callers)  # noqa: S101 -- see handles
        self._load.pull(pull)

    async def release(self, pull: Pull) -> None:
        assert isinstance(pull, Callers)  # noqa: S101 -- see handles
        self._load.release(pull)
