"""A process that forks children which do nothing but write, and kills each at a moment of its own.

    python -m tests.hostile.sigkill_writers FOLDER KILLS SEED

A child says by a pipe what it has written. After each kill this process reads what is there, as the next server
would, and holds it against that. What it finds wrong is printed, one finding a line; the last line counts.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from xds_server.app import log_config
from xds_server.ledger.decision_recording import RecordingError, RecordingReader, read_rounds
from xds_server.ledger.jsonl_writer import JsonlWriter, tail
from xds_server.ledger.operator_orders import Orders
from xds_server.model.fleet import EngineId
from xds_server.model.order import Order, OrderAction
from xds_server.rollout.history.policy_version import PolicyVersion, VersionSource
from xds_server.rollout.history.version_archive import VersionArchive
from xds_server.rollout.last_good import LastGood, LastGoodStore

LONGEST_S: Final = 0.02
KEPT_VERSIONS: Final = 8
RECORDED: Final = Path(__file__).parents[1] / "data" / "formats" / "recording.1.jsonl"


def last_good(number: int) -> LastGood:
    """Two files that belong together: a policy that is half applied has one of each."""
    text = f"# {number}\n" * (1 + number % 2_000)
    return LastGood(
        texts={"a.yaml": text, "b.yaml": text},
        digest=str(number),
        proxies_by_role={"gateway": number},
        saved_at_unix_s=float(number),
    )


def store_child(folder: Path, number: int, told: Callable[[int], None]) -> None:
    store = LastGoodStore(folder)
    while True:
        number += 1
        store.save(last_good(number))
        told(number)


def orders_child(folder: Path, number: int, told: Callable[[int], None]) -> None:
    while True:
        number += 1
        orders = Orders(folder, wall=lambda: 0.0, clock=lambda: 0.0)
        for engine in range(1 + number % 50):
            key = EngineId("chat", f"e{engine}")
            orders.give(Order(engine=key, action=OrderAction.DRAIN, until_s=60.0, reason=str(number)))
        orders._save(orders._as_kept())
        told(number)


def lines_child(folder: Path, number: int, told: Callable[[int], None]) -> None:
    lines = JsonlWriter(folder / "ledger.jsonl", 1 << 30)
    while True:
        batch = range(number + 1, number + 1 + 1 + number % 40)
        lines._append([json.dumps({"n": one, "text": "x" * (one % 900)}) for one in batch])
        number = batch[-1]
        told(number)


def version(number: int) -> PolicyVersion:
    """A version whose content, names and texts carry its number."""
    return PolicyVersion(
        number=number,
        digest=str(number),
        former=f"former {number}",
        at_unix_s=1.0,
        source=next(iter(VersionSource)),
        by="ops",
        texts={"a.yaml": f"# {number}\n" * (1 + number % 2_000)},
    )


def history_child(folder: Path, number: int, told: Callable[[int], None]) -> None:
    archive = VersionArchive(folder, max_versions=KEPT_VERSIONS)
    archive.restore()
    while True:
        number = archive.next_number()
        archive.add(version(number))
        archive.flush()
        told(number)


def recording_child(folder: Path, number: int, told: Callable[[int], None]) -> None:
    header, *following = RECORDED.read_text().splitlines()
    lines = JsonlWriter(folder / "recording.jsonl", 1 << 30)
    lines._append([None, header])
    while True:
        for line in following:
            lines._append([line])
            number += 1
            told(number)


def store_is_whole(folder: Path, written: int) -> str:
    found = LastGoodStore(folder).read()
    if found is None:
        return "" if written == 0 else f"nothing is left of {written}"
    number = int(found.digest)
    if number < written:
        return f"{written} was kept, and {number} is there"
    return "" if found == last_good(number) else f"{number} is half of it"


def orders_are_whole(folder: Path, written: int) -> str:
    orders = Orders(folder, wall=lambda: 0.0, clock=lambda: 0.0)
    orders.restore()
    given = orders.active(0.0)
    if not given:
        return "" if written == 0 else f"nothing is left of {written}"
    number = int(next(iter(given.values())).reason)
    whole = len(given) == 1 + number % 50 and all(one.reason == str(number) for one in given.values())
    return "" if whole and number >= written else f"{written} was kept, and of {number} {len(given)} are there"


def lines_are_whole(folder: Path, written: int) -> str:
    numbers, foreign = [], 0
    for line in tail(folder / "ledger.jsonl", 1 << 30):
        try:
            numbers.append(json.loads(line)["n"])
        except ValueError:
            foreign += 1
    missing = set(range(1, written + 1)) - set(numbers)
    if missing:
        return f"lines {sorted(missing)[:5]} of {written} are gone"
    return "" if foreign <= KILLED["ledger"] else f"{foreign} lines are torn after {KILLED['ledger']} kills"


def history_is_whole(folder: Path, written: int) -> str:
    archive = VersionArchive(folder)
    archive.restore()
    newest = archive.newest.number if archive.newest else 0
    if newest < written:
        return f"{written} was kept, and {newest} is the newest"
    found = {one.number: one for one in archive.versions}
    # Older files that remain are about to be deleted and are never restored.
    stay = sorted(found)[-KEPT_VERSIONS:]
    # A number announced by a killed child, and not saved, is not used again.
    missing = set(range(stay[0] if stay else 1, newest + 1)) - found.keys()
    most = KILLED["history"]
    few = len(stay) < min(KEPT_VERSIONS, newest - most)
    if archive.damaged or few or len(missing) > most or missing & {written}:
        return f"of {newest} versions there are {sorted(found)}, and {archive.damaged} damaged"
    halves = [number for number in stay if found[number] != version(number)]
    return f"versions {halves} are half of it" if halves else ""


def recording_is_whole(folder: Path, _written: int) -> str:
    path = folder / "recording.jsonl"
    reading = RecordingReader()
    try:
        for _ in read_rounds(path, reading):
            pass
    except RecordingError as error:
        # Killed before its first line: nothing was recorded, and the message states that.
        whole = path.exists() and path.read_bytes().count(b"\n") > 1
        return str(error) if whole else ""
    return ""


PARTS: Final = {
    "store": (store_child, store_is_whole),
    "orders": (orders_child, orders_are_whole),
    "ledger": (lines_child, lines_are_whole),
    "history": (history_child, history_is_whole),
    "recording": (recording_child, recording_is_whole),
}
KILLED: Final = dict.fromkeys(PARTS, 0)


def kill_one(part: str, folder: Path, written: int, after_s: float) -> int:
    """Let a child write from ``written`` on and kill it; the last number it reported as written."""
    child_writes, _ = PARTS[part]
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hear)
        try:
            child_writes(folder, written, lambda number: os.write(tell, b"%d\n" % number) and None)
        finally:
            os._exit(1)  # not by its own will: the parent sees that it was not killed
    os.close(tell)
    said = os.read(hear, 4_096)  # at least one is written, so that each kill meets one that writes
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    with os.fdopen(hear, "rb") as rest:
        said += rest.read()
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit(f"{part}: the child ended by itself")
    KILLED[part] += 1
    numbers = said.split(b"\n")[:-1]
    return int(numbers[-1]) if numbers else written


def main(folder: Path, kills: int, seed: int) -> None:
    log_config.configure("json", "error")
    rng = random.Random(seed)
    written = dict.fromkeys(PARTS, 0)
    left_beside = 0
    for part in PARTS:
        (folder / part).mkdir(parents=True)
    for number in range(kills):
        part = list(PARTS)[number % len(PARTS)]
        written[part] = kill_one(part, folder / part, written[part], rng.uniform(0, LONGEST_S))
        left_beside += sum(path.name.startswith(".") for path in (folder / part).iterdir())
        if found := PARTS[part][1](folder / part, written[part]):
            sys.stdout.write(f"{part} after kill {number}: {found}\n")
    left = sum(path.name.startswith(".") for part in ("store", "orders") for path in (folder / part).iterdir())
    total = sum(KILLED.values())
    sys.stdout.write(json.dumps({"kills": total, "left": left, "left_beside": left_beside, **written}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
