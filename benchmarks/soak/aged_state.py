"""Initial state with ledger and policy history at their limits, as after days of uptime.

Otherwise both keep filling for 30 minutes, which looks like growth.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from xds_server.decide.decisions import Health
from xds_server.decide.diff.change import ChangeKind, Subject
from xds_server.ledger.event import Event, as_line
from xds_server.ledger.event_store import FLAPS_WITHIN_S, MOST_OF_ONE
from xds_server.rollout.history import version_archive
from xds_server.rollout.history.policy_version import PolicyVersion, VersionSource

_APART_S = 2 * FLAPS_WITHIN_S
"""Closer events would be merged into one."""


def write_aged_state(ledger: Path, state: Path, text: str, *, pool: str, engines: Sequence[str]) -> None:
    """Fill the ledger for each of the engines, the pool and the policies, and the history with this text."""
    subjects = [Subject(), Subject(pool=pool), *(Subject(pool=pool, engine=engine) for engine in engines)]
    now_unix_s = time.time()
    events = (event for subject in subjects for event in _events(subject, now_unix_s))
    ledger.write_text("".join(f"{as_line(event)}\n" for event in sorted(events, key=lambda one: one.at_unix_s)))
    folder = state / version_archive.FOLDER
    folder.mkdir(mode=0o700, parents=True)
    for number in range(1, version_archive.MAX_VERSIONS + 1):
        version = PolicyVersion(
            number=number,
            digest=f"soak-{number}",
            at_unix_s=now_unix_s - _APART_S * (version_archive.MAX_VERSIONS + 1 - number),
            source=VersionSource.FILES,
            by=VersionSource.FILES.value,
            # Each has a text of its own, as versions do.
            texts={"chat.yaml": f"# {number}\n{text}"},
        )
        version_archive.write(folder / f"{number:08}.json", version)


def _events(subject: Subject, now_unix_s: float) -> Iterator[Event]:
    """All that is remembered of one subject; of an engine, that it went and came back, in the end."""
    kind = ChangeKind.HEALTH if subject.engine else ChangeKind.CEILING if subject.pool else ChangeKind.POLICIES
    for number in range(MOST_OF_ONE):
        back = number % 2 == 1
        before, after = (str(number), str(number + 1))
        if subject.engine:
            before, after = (Health.UNHEALTHY, Health.HEALTHY) if back else (Health.HEALTHY, Health.UNHEALTHY)
        at_unix_s = now_unix_s - _APART_S * (MOST_OF_ONE - number)
        yield Event(
            number=0,
            at_s=0.0,
            at_unix_s=at_unix_s,
            kind=kind,
            subject=subject,
            before=before,
            after=after,
            evidence=f"{subject.engine or subject.pool or 'the files'}: so it was in the past, look {number}",
            rule="ResiliencePolicy.spec.breaker.capacityFloorPercent",
            place="built-in default",
            returns="1 good look in a row",
            numbers={"window_calls": 2.0, "window_failures": 1.0, "failures_in_a_row": 1.0, "in_flight": 0.0},
            first_unix_s=at_unix_s,
            requests=(f"427134cc-f352-47f2-814d-{number:012}",) if subject.engine and not back else (),
        )
