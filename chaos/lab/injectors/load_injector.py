"""Load faults: more requests, client retries, or a burst."""

from typing import ClassVar

from chaos.faults.actions import ChangeLoad, FaultAction
from chaos.lab.lab_handles import LabHandles


class LoadInjector:
    """Changes the running load."""

    handles: ClassVar[tuple[type, ...]] = (ChangeLoad,)

    def __init__(self, site: LabHandles) -> None:
        self._load = site.load

    def refusal(self, pull: FaultAction) -> str:  # noqa: ARG002 -- there are always callers
        return ""

    async def inject(self, pull: FaultAction) -> None:
        assert isinstance(pull, ChangeLoad)  # noqa: S101 -- see handles
        self._load.inject(pull)

    async def revert(self, pull: FaultAction) -> None:
        assert isinstance(pull, ChangeLoad)  # noqa: S101 -- see handles
        self._load.revert(pull)
