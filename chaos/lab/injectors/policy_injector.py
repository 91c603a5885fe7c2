"""Policy faults: change the control plane's policy file, and restore it."""

from pathlib import Path
from typing import ClassVar

from chaos.faults.actions import FaultAction, PushPolicy
from chaos.lab.lab_handles import InjectionError, LabHandles


class PolicyInjector:
    """Writes the policy file. Of several active pushes the last one counts."""

    handles: ClassVar[tuple[type, ...]] = (PushPolicy,)

    def __init__(self, site: LabHandles) -> None:
        self._file = site.policies
        self._good = ""
        self._pushed: list[PushPolicy] = []

    def refusal(self, pull: FaultAction) -> str:  # noqa: ARG002 -- all pushes go to one file
        return "" if self._file is not None else "this lab has no control plane to read policies"

    async def inject(self, pull: FaultAction) -> None:
        assert isinstance(pull, PushPolicy)  # noqa: S101 -- see handles
        if self._file is None:
            raise InjectionError(self.refusal(pull))
        if not self._pushed:
            self._good = self._file.read_text(encoding="utf-8")
        self._pushed.append(pull)
        replace_text(self._file, _pushed_text(self._good, pull))

    async def revert(self, pull: FaultAction) -> None:
        assert isinstance(pull, PushPolicy)  # noqa: S101 -- see handles
        if self._file is None or pull not in self._pushed:
            return
        self._pushed.remove(pull)
        replace_text(self._file, _pushed_text(self._good, self._pushed[-1]) if self._pushed else self._good)


def replace_text(path: Path, text: str) -> None:
    """Write the file atomically."""
    # The control plane reads only *.yaml in the folder, not this name.
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _pushed_text(good: str, push: PushPolicy) -> str:
    return good[: round(push.kept_share * len(good))] + push.text
