"""What is written today can be read by the version before this one, so that one can go back to it.

That version is not here. What it needs is known from what it wrote: its formats, its fields, and where it refuses
a field that it does not know. Once a version that passes them over is the one before, those refusals end here.
"""

import json
from pathlib import Path
from typing import Any

from chaos.history.event_codec import as_line as history_line
from chaos.history.history_events import ExperimentBegan
from engine.proto import engine_report_pb2 as pb
from engine.report_wire import decode, encode
from policies.load import load_contents
from xds_server.decide.diff.change import ChangeKind, Subject
from xds_server.k8s.replica_status import replica_status, status_annotations
from xds_server.ledger.decision_recording import DecisionRecorder, RecordedInputs, RecordingReader, read_rounds
from xds_server.ledger.event import Event, as_line
from xds_server.ledger.jsonl_writer import JsonlWriter
from xds_server.ledger.operator_orders import FILE_NAME as ORDERS
from xds_server.ledger.operator_orders import Orders
from xds_server.model.fleet import EngineId
from xds_server.model.order import Order, OrderAction
from xds_server.rollout.history.policy_version import PolicyVersion, VersionSource, digest_of
from xds_server.rollout.history.version_archive import read as read_version
from xds_server.rollout.history.version_archive import write as write_version
from xds_server.rollout.last_good import FILE_NAME as LAST_GOOD
from xds_server.rollout.last_good import LastGoodStore


def shape(value: Any) -> Any:
    """Fields and their types; a list has the shape of its first item."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(one) for one in value[:1]]
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def shown(path: Path) -> Any:
    """The shape of a file in an envelope: its format, and its payload without the names of the policy files."""
    envelope = json.loads(path.read_text())
    envelope["payload"]["texts"] = dict.fromkeys(("a", "b"), "")
    return envelope["format"], shape(envelope)


def test_the_last_good_policies(before: Path, tmp_path: Path) -> None:
    kept = LastGoodStore(before / "state").read()
    assert kept is not None
    LastGoodStore(tmp_path).save(kept)
    assert shown(tmp_path / LAST_GOOD) == shown(before / "state" / LAST_GOOD), "it refuses fields it does not know"


def test_a_version_of_the_history(before: Path, tmp_path: Path) -> None:
    version = PolicyVersion(
        number=3,
        digest="d",
        at_unix_s=1.5,
        source=VersionSource.ROLLBACK,
        by="ops",
        texts={"a": "", "b": ""},
        reason="why",
        beside="b",
        restores=1,
    )
    write_version(tmp_path / "3.json", version)
    recorded = before / "state" / "history" / "00000003.json"
    assert shown(tmp_path / "3.json") == shown(recorded), "it refuses fields it does not know"
    assert {one.value for one in VersionSource} == {"files", "kubernetes", "applied", "rollback"}, (
        "and other sources"
    )


def test_versions_are_named_as_it_names_them(before: Path) -> None:
    """It takes up what was applied only by the digests that it makes itself; see ``offers/test_changing``."""
    folder = before / "state" / "history"
    versions = [read_version(path, int(path.stem)) for path in sorted(folder.iterdir())]
    (rollback,) = (one for one in versions if one.source is VersionSource.ROLLBACK)
    assert rollback.digest == digest_of(rollback.texts)
    assert rollback.beside == versions[rollback.number - 2].digest, "of the files, as a version of them has it"


def test_orders(before: Path, tmp_path: Path) -> None:
    orders = Orders(tmp_path, clock=lambda: 50.0, wall=lambda: 1e9)
    given = Order(
        engine=EngineId("chat", "e1"), action=OrderAction.DRAIN, until_s=60.0, reason="r", by="ops", force=True
    )
    orders.give(given)
    orders._save(orders._as_kept())
    (then,) = json.loads((before / "state" / ORDERS).read_text())
    (now,) = json.loads((tmp_path / ORDERS).read_text())
    assert now.items() >= {"pool": "chat", "engine": "e1", "action": "drain", "until_unix_s": 1e9 + 10}.items()
    assert shape(now).items() >= shape(then).items()
    # A server that does not know an action ignores that order and keeps the others.
    assert {one.value for one in OrderAction} == {"eject", "drain", "restore", "degrade"}


def test_a_line_of_the_ledger(before: Path) -> None:
    event = Event(
        number=7,
        at_s=5.0,
        at_unix_s=1e9,
        kind=ChangeKind.HEALTH,
        subject=Subject(pool="chat", engine="e0"),
        before="HEALTHY",
        after="UNHEALTHY",
        evidence="hung",
        rule="EnginePool.spec.probe.stallAfter",
        place="built-in default",
        returns="r",
        until_unix_s=1e9,
        numbers={"n": 1.0},
        alarm=True,
        times=2,
        first_unix_s=1e9,
        requests=("x",),
    )
    now = shape(json.loads(as_line(event)))
    for line in (before / "ledger.jsonl").read_text().splitlines():
        then = shape(json.loads(line))
        then.pop("numbers", None)
        then.pop("subject")
        assert now.items() >= then.items()
    assert now["subject"] == {"pool": str, "engine": str}


def test_a_recording(before: Path, tmp_path: Path) -> None:
    """What was recorded, written again as it is written today."""
    recorded, reading = before / "recording.jsonl", RecordingReader()
    lines = JsonlWriter(tmp_path / "recording.jsonl", 1 << 30)
    recorder, fleet = DecisionRecorder(lines), None
    for one in read_rounds(recorded, reading):
        policies = load_contents({Path(name): text.encode() for name, text in reading.texts.items()})
        fleet = reading.fleet(policies, fleet if one.policies is None else None)
        moment = RecordedInputs(
            now_s=one.now_s,
            unix_s=one.unix_s,
            texts=reading.texts,
            fleet=fleet,
            proxies=reading.proxies,
            proxies_by_role=reading.proxies_by_role,
            calling_zones=reading.calling_zones,
            orders=reading.orders,
        )
        recorder.record(moment)
    written = [json.loads(line) for line in lines._waiting if line is not None]
    then = [json.loads(line) for line in recorded.read_text().splitlines()]
    assert written[0] == then[0], "the first line says the format"
    assert len(written) == len(then)
    for ours, theirs in zip(written[1:], then[1:], strict=True):
        assert ours.keys() == theirs.keys()
        assert ours.get("engines", {}).keys() == theirs.get("engines", {}).keys()
    first, earlier = written[1], then[1]
    for name in ("policies", "proxies", "proxies_by_role", "engines", "traffic"):
        assert _has(first.get(name), earlier.get(name)), name


def _has(now: Any, then: Any) -> bool:
    """Whether all fields of then are there now, with their values."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(key in now and _has(now[key], one) for key, one in then.items())
    return bool(now == then)


def test_the_first_line_of_a_history_of_the_lab() -> None:
    began = ExperimentBegan(
        at_unix_s=1.0,
        name="n",
        subject="s",
        scenario={},
        policies="",
        pool="chat",
        time_scale=1.0,
        max_wait_s=1.0,
        service_s=1.0,
        rate_per_s=1.0,
        seconds=1.0,
        seed=1,
        engines=(),
        proxies=(),
    )
    said = json.loads(history_line(began))
    assert (said["event"], said["format"]) == ("began", 1)


def test_a_report_of_each_kind(before: Path) -> None:
    for path in sorted((before / "reports").glob("*.bin")):
        then = pb.EngineReport.FromString(path.read_bytes())
        report = decode(path.read_bytes(), pool="chat", engine="e0", received_at_s=7.0)
        now = pb.EngineReport.FromString(encode(report))
        assert now.schema_version == then.schema_version
        assert {field.name for field, _ in then.ListFields()} <= {field.name for field, _ in now.ListFields()}
        assert (now.verdict, now.boot_id, now.sequence) == (then.verdict, then.boot_id, then.sequence)
        assert list(now.evidence) == list(then.evidence)
        assert list(now.gpu.gpus) == list(then.gpu.gpus)


def test_protobuf_field_numbers_and_types_are_stable() -> None:
    """As the version before has them; more may be added."""
    then = {
        "WatchRequest": {"watcher": 1, "pool": 2},
        "DrainProgress": {
            "watcher": 1,
            "boot_id": 2,
            "sequence": 3,
            "proxies_total": 4,
            "proxies_acknowledged": 5,
        },
        "DrainAnswer": {"waiting": 1},
        "Drain": {"requested": 1, "deadline_in_s": 2},
        "Evidence": {"reading": 1, "threshold": 2, "age_s": 3, "sentence": 4},
        "Canary": {"in_row": 1, "age_s": 2, "took_s": 3},
    }
    for name, fields in then.items():
        now = pb.DESCRIPTOR.message_types_by_name[name]
        assert {one: now.fields_by_name[one].number for one in fields} == fields, name
    assert dict(pb.Verdict.items()).items() >= {"READY": 2, "BUSY": 3, "HUNG": 4, "DEAD": 5, "DRAINING": 6}.items()


def test_the_lease_of_a_replica(before: Path) -> None:
    leases = json.loads((before / "cluster" / "leases.json").read_text())["items"]
    (lease,) = [one for one in leases if one["metadata"]["name"] == "switchgear-replica-replica-a"]
    said = replica_status(lease)
    assert said is not None
    now, then = status_annotations(said), lease["metadata"]["annotations"]
    for name, text in now.items():
        assert _has(json.loads(text), json.loads(then[name])), name
