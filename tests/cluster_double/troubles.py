"""Faults of the fake API server, set by a test in the same process or over HTTP."""

from dataclasses import dataclass, fields, replace
from typing import Any, Final

from tests.cluster_double.json_object import Object

RETRY_AFTER_S: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubles:
    """Current faults; none by default.

    ``silent``: requests get no answer, and watches no events, until it is over. ``delay_s``: every answer comes so
    much later. ``too_many``: that many requests, from now on, are answered 429. ``failing``: likewise by 500.
    ``only`` limits all of it to paths that contain this text.
    """

    silent: bool = False
    delay_s: float = 0.0
    too_many: int = 0
    failing: int = 0
    only: str = ""

    def concerns(self, path: str) -> bool:
        """Whether a request to this path is one of those that have it."""
        return self.only in path

    def one_less(self) -> "Troubles":
        """What is left after one request was answered 429 or 500."""
        if self.too_many:
            return replace(self, too_many=self.too_many - 1)
        return replace(self, failing=max(0, self.failing - 1))


def troubles(said: Object) -> Troubles:
    """Troubles as JSON has them; ``ValueError`` names what is none."""
    known = {one.name: one.default for one in fields(Troubles)}
    for name, value in said.items():
        if name not in known:
            msg = f"{name} is none of {', '.join(known)}"
            raise ValueError(msg)
        if not _fits(value, known[name]):
            msg = f"{name}: {value!r} is not of the kind of {known[name]!r}"
            raise ValueError(msg)
    return Troubles(**said)


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, str):
        return isinstance(value, str)
    allowed = (int,) if isinstance(default, int) else (int, float)
    return isinstance(value, allowed) and value >= 0
