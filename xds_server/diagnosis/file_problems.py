"""Problems with files that trust or a restart depends on, from all who know of them, with since when each stands.

Whoever follows files only says what is wrong now. Here it is remembered when that began, so that what is said over
and over is one trouble with an age. Nothing secret is in a trouble: a place, and a sentence about it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from xds_server.admin_api.status_types import FileDefect, FileProblem

EXPIRES_SOON_S: Final = 7 * 86_400.0
"""A certificate with less than this left is told of. Those of months are renewed with weeks left, so one that
comes this far was forgotten; and a week has a working day in it, whatever day it is."""

EXPIRES_SOON_SHARE: Final = 0.25
"""Certificates of hours or days are always within a week of their end: of those this share of their life counts.
Meshes and cert-manager renew with a third to a half of it left."""

CHECK_EACH_S: Final = 1.0

ProblemSource = Callable[[], Iterable[FileProblem]]


def expiry_problem(
    what: str, file: str, *, begins_unix_s: float, ends_unix_s: float, now_unix_s: float
) -> tuple[FileProblem, ...]:
    """The trouble that a certificate has ended, or ends soon; nothing while there is time."""
    left_s = ends_unix_s - now_unix_s
    if left_s >= min(EXPIRES_SOON_S, EXPIRES_SOON_SHARE * (ends_unix_s - begins_unix_s)):
        return ()
    when = datetime.fromtimestamp(ends_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    ended = left_s <= 0
    sentence = (
        f"it ended at {when}: whoever checks it refuses it"
        if ended
        else f"it ends at {when}, and nothing newer is there"
    )
    defect = FileDefect.ENDED if ended else FileDefect.ENDS
    return (FileProblem(what=what, defect=defect, file=file, sentence=sentence, ends_in_s=round(left_s)),)


class FileProblems:
    """What ``tellers`` say is wrong now, each with its age. ``current`` regularly: an age is from the first
    look.
    """

    def __init__(
        self, tellers: Sequence[ProblemSource] = (), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tellers = tellers
        self._clock = clock
        self._since_s: dict[tuple[str, str, str], float] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.current()
            await asyncio.sleep(CHECK_EACH_S)

    def current(self) -> tuple[FileProblem, ...]:
        """All troubles now, those that stand longest first."""
        now_s = self._clock()
        found = [one for teller in self._tellers for one in teller()]
        self._since_s = {key: self._since_s.get(key, now_s) for key in map(_key, found)}
        aged = [replace(one, age_s=round(now_s - self._since_s[_key(one)], 3)) for one in found]
        return tuple(sorted(aged, key=lambda one: (-one.age_s, one.what, one.file)))


def _key(one: FileProblem) -> tuple[str, str, str]:
    return one.what, one.defect, one.file
