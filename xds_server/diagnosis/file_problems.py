"""Problems with files that trust or a restart depends on, from all sources, with their age.

Sources only report what is wrong now. This remembers since when, so that a repeated report is one problem with an
age. Problems never contain secrets: only a location and a sentence.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from xds_server.admin_api.status_types import FileDefect, FileProblem

EXPIRES_SOON_S: Final = 7 * 86_400.0
"""A certificate with less time left is reported. Certificates of months are renewed weeks before, so one this late
was forgotten; a week includes a working day."""

EXPIRES_SOON_SHARE: Final = 0.25
"""Certificates of hours or days are always within a week of their end: for them this share of their life counts.
Meshes and cert-manager renew with a third to a half of it left."""

CHECK_EACH_S: Final = 1.0

ProblemSource = Callable[[], Iterable[FileProblem]]


def expiry_problem(
    what: str, file: str, *, begins_unix_s: float, ends_unix_s: float, now_unix_s: float
) -> tuple[FileProblem, ...]:
    """The problem of a certificate that has expired or expires soon; none while there is time."""
    left_s = ends_unix_s - now_unix_s
    if left_s >= min(EXPIRES_SOON_S, EXPIRES_SOON_SHARE * (ends_unix_s - begins_unix_s)):
        return ()
    when = datetime.fromtimestamp(ends_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    ended = left_s <= 0
    sentence = (
        f"expired at {when}: peers that check it refuse it"
        if ended
        else f"expires at {when} and has not been renewed"
    )
    defect = FileDefect.ENDED if ended else FileDefect.ENDS
    return (FileProblem(what=what, defect=defect, file=file, sentence=sentence, ends_in_s=round(left_s)),)


class FileProblems:
    """Current problems of all ``sources``, with their ages: since the first call of ``current`` that had them."""

    def __init__(
        self, sources: Sequence[ProblemSource] = (), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sources = sources
        self._clock = clock
        self._since_s: dict[tuple[str, str, str], float] = {}

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            self.current()
            await asyncio.sleep(CHECK_EACH_S)

    def current(self) -> tuple[FileProblem, ...]:
        """All current problems, oldest first."""
        now_s = self._clock()
        found = [one for teller in self._sources for one in teller()]
        self._since_s = {key: self._since_s.get(key, now_s) for key in map(_key, found)}
        aged = [replace(one, age_s=round(now_s - self._since_s[_key(one)], 3)) for one in found]
        return tuple(sorted(aged, key=lambda one: (-one.age_s, one.what, one.file)))


def _key(one: FileProblem) -> tuple[str, str, str]:
    return one.what, one.defect, one.file
