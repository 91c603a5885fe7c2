"""Troubles with files that trust or a restart depends on, from all who know of them, with since when each stands.

Whoever follows files only says what is wrong now. Here it is remembered when that began, so that what is said over
and over is one trouble with an age. Nothing secret is in a trouble: a place, and a sentence about it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from xds_server.answers.status import Defect, Trouble

SOON_S: Final = 7 * 86_400.0
"""A certificate with less than this left is told of. Those of months are renewed with weeks left, so one that
comes this far was forgotten; and a week has a working day in it, whatever day it is."""

SOON_SHARE: Final = 0.25
"""Certificates of hours or days are always within a week of their end: of those this share of their life counts.
Meshes and cert-manager renew with a third to a half of it left."""

LOOK_EACH_S: Final = 1.0

Teller = Callable[[], Iterable[Trouble]]


def ends(
    what: str, file: str, *, begins_unix_s: float, ends_unix_s: float, now_unix_s: float
) -> tuple[Trouble, ...]:
    """The trouble that a certificate has ended, or ends soon; nothing while there is time."""
    left_s = ends_unix_s - now_unix_s
    if left_s >= min(SOON_S, SOON_SHARE * (ends_unix_s - begins_unix_s)):
        return ()
    when = datetime.fromtimestamp(ends_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    ended = left_s <= 0
    sentence = (
        f"it ended at {when}: whoever checks it refuses it"
        if ended
        else f"it ends at {when}, and nothing newer is there"
    )
    defect = Defect.ENDED if ended else Defect.ENDS
    return (Trouble(what=what, defect=defect, file=file, sentence=sentence, ends_in_s=round(left_s)),)


class Troubles:
    """What ``tellers`` say is wrong now, each with its age. ``look`` regularly: an age is from the first look."""

    def __init__(self, tellers: Sequence[Teller] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tellers = tellers
        self._clock = clock
        self._since_s: dict[tuple[str, Defect, str], float] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EACH_S)

    def look(self) -> tuple[Trouble, ...]:
        """All troubles now, those that stand longest first."""
        now_s = self._clock()
        found = [one for teller in self._tellers for one in teller()]
        self._since_s = {key: self._since_s.get(key, now_s) for key in map(_key, found)}
        aged = [replace(one, age_s=round(now_s - self._since_s[_key(one)], 3)) for one in found]
        return tuple(sorted(aged, key=lambda one: (-one.age_s, one.what, one.file)))


def _key(one: Trouble) -> tuple[str, Defect, str]:
    return one.what, one.defect, one.file
