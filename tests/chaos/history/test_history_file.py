"""History files: written events are read back, and bad files are reported."""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import pytest

from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.event_codec import HistoryError, as_line
from chaos.history.history_events import (
    AttemptRecord,
    ConfigPush,
    ConfigReply,
    ControlPlaneDecision,
    CpuUsage,
    EngineDetection,
    EngineRecord,
    ExperimentAborted,
    ExperimentBegan,
    ExperimentEnded,
    FaultBegan,
    FaultHealed,
    HistoryEvent,
    ProcessExit,
    ProxyRecord,
    ProxySample,
    RequestRecord,
)
from chaos.history.history_reader import history_of, read_history
from chaos.history.history_writer import HistoryFile
from chaos.history.request_outcomes import OutcomeReason

BEGAN = ExperimentBegan(
    at_unix_s=1.7e9,
    name="one",
    subject="policies",
    scenario={"spec": {"title": "t"}},
    policies="kind: EnginePool",
    pool="chat",
    time_scale=4.0,
    max_wait_s=0.5,
    service_s=0.5,
    rate_per_s=80.0,
    seconds=30.0,
    seed=1,
    engines=(EngineRecord(name="e0", zone="a", slots=8, slowness=1.0, pool="chat"),),
    proxies=(ProxyRecord(name="p0", zone="a", demand=1.0),),
)


def request(at_s: float) -> RequestRecord:
    return RequestRecord(
        at_s=at_s,
        request_id=f"load-1-{at_s}",
        question=f"load-1-{at_s}",
        proxy="p0",
        streaming=True,
        lag_s=0.001,
        status=200,
        reason=OutcomeReason.OK,
        first_token_s=0.1,
        latency_s=0.5,
        tokens=40,
    )


OTHERS: tuple[HistoryEvent, ...] = (
    request(2.0),
    request(1.0),
    FaultBegan(at_s=10.0, id="hang", fault={"kind": "hang"}, targets=("e0",)),
    FaultBegan(at_s=9.0, id="crash", fault={"kind": "crash"}, targets=("e0",)),
    FaultHealed(at_s=20.0, id="hang"),
    AttemptRecord(
        at_s=1.0,
        engine="e0",
        request_id="load-1-1.0",
        number=1,
        streaming=True,
        fate=Fate.FINISHED,
        reason="stop",
        closed_at_s=1.5,
        started_at_s=None,
        slot_s=0.5,
        tokens_generated=40,
        tokens_sent=40,
    ),
    ProxySample(
        at_s=3.0, proxy="p0", in_flight={"e0": 2}, sent=MappingProxyType({"e0": 9}), ejected=("e0",), ceiling=60.0
    ),
    EngineDetection(at_s=11.0, engine="e0", verdict="hung"),
    ControlPlaneDecision(
        at_s=11.1, kind="health", engine="e0", subject="e0", before="in", after="out", evidence="hung", out=True
    ),
    ConfigPush(at_s=11.2, proxy="p0", type="eds", nonce="7"),
    ConfigReply(at_s=11.3, proxy="p0", type="eds", nonce="7", error="no"),
    ProcessExit(at_s=25.0, process="agent", status=-9),
    ExperimentAborted(at_s=26.0, why="too bad"),
    CpuUsage(at_s=30.0, processes={"engines": 20.0}, machine=50.0, ours=40.0),
    ExperimentEnded(at_s=31.0),
)


def written(path: Path, *events: HistoryEvent) -> Path:
    with HistoryFile(path) as history:
        for event in events:
            history.write(event)
    return path


def test_events_are_read_back_sorted_by_time(tmp_path: Path) -> None:
    history = read_history(written(tmp_path / "h.jsonl", BEGAN, *OTHERS))
    assert history == history_of([BEGAN, *OTHERS])
    assert history.began == BEGAN
    assert [one.at_s for one in history.requests] == [1.0, 2.0]
    assert [(one.id, one.start_s, one.end_s) for one in history.outages] == [
        ("crash", 9.0, None),
        ("hang", 10.0, 20.0),
    ]
    for event in OTHERS[5:-1]:
        held = (
            *(*history.attempts, *history.samples, *history.detected, *history.decided, *history.pushed),
            *(*history.answered, *history.gone, history.aborted, history.used),
        )
        assert event in held
    assert history.ended_s == 31.0
    assert history.unread == ()


def test_every_event_kind_is_one_tagged_line(tmp_path: Path) -> None:
    lines = written(tmp_path / "h.jsonl", BEGAN, *OTHERS).read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == [event.event for event in (BEGAN, *OTHERS)]


def test_truncated_last_line_of_a_history_is_dropped(tmp_path: Path) -> None:
    path = written(tmp_path / "h.jsonl", BEGAN, *OTHERS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    history = read_history(path)
    assert history.ended_s is None
    assert history.used is not None
    assert history.unread == (f"{path}:{len(OTHERS) + 1}: truncated line",)


def test_last_line_without_newline_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "h.jsonl", BEGAN, ExperimentEnded(at_s=31.0))
    path.write_bytes(path.read_bytes().rstrip())
    assert read_history(path).ended_s == 31.0


def test_unknown_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    more = json.loads(as_line(request(1.0))) | {"colour": "blue"}
    unknown = {"event": "sneeze", "at_s": 1.0}
    path.write_bytes(as_line(BEGAN) + json.dumps(more).encode() + b"\n\n" + json.dumps(unknown).encode() + b"\n")
    history = read_history(path)
    assert history.requests == (request(1.0),)
    assert len(history.unread) == 1
    assert history.unread[0].startswith(f"{path}:4: ")


def test_unreadable_lines_are_counted_and_some_listed(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(as_line(BEGAN) + b"nonsense\n" * 100)
    assert len(read_history(path).unread) == 21
    assert read_history(path).unread[-1] == "and 80 more"


def test_line_with_nan_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(as_line(BEGAN) + b'{"event":"detected","at_s":NaN,"engine":"e0","verdict":"hung"}\n')
    (expected,) = read_history(path).unread
    assert "finite number" in expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty"),
        (b"kind: EnginePool\n", ":1: not a history"),
        (b"[1, 2]\n", ":1: not a history"),
        (b'{"format": 1}\n', ":1: not a history: event: Field required"),
        (as_line(request(1.0)), ":1: not a history: format: Field required"),
        (b'{"event":"ended","format":1}\n', ":1: a history starts with the event `began`, not ended"),
        (b'{"event":"began","format":99}\n', ":1: the history has format 99, this version reads 1"),
        (b'{"event":"began","format":1}\n', ":1: began."),
        (as_line(BEGAN)[:50], ":1: not a history"),
        (as_line(BEGAN) * 2, ":2: a second history starts here"),
        (b"\x00\xff\n", ":1: not a history"),
    ],
)
def test_unusable_history_is_refused_with_the_reason(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(content)
    with pytest.raises(HistoryError) as caught:
        read_history(path)
    assert str(caught.value).startswith(str(path))
    assert expected in str(caught.value)


def test_missing_history_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="nowhere: No such file"):
        read_history(tmp_path / "nowhere")


def test_history_without_began_event_is_refused() -> None:
    with pytest.raises(HistoryError, match="the first event"):
        history_of([request(1.0)])


def test_only_a_history_is_overwritten(tmp_path: Path) -> None:
    path = written(tmp_path / "h.jsonl", BEGAN, *OTHERS)
    written(path, BEGAN)
    assert read_history(path).requests == ()
    path.write_text('{"policies": 1}')
    with pytest.raises(HistoryError, match="not a history"):
        written(path, BEGAN)
    assert path.read_text() == '{"policies": 1}'
    with pytest.raises(HistoryError, match="No such file"):
        written(tmp_path / "no" / "h.jsonl", BEGAN)


def test_full_disk_is_reported() -> None:
    with pytest.raises(HistoryError, match="No space left"), HistoryFile(Path("/dev/full")) as history:
        history.write(BEGAN)


def test_history_survives_a_killed_writer(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from chaos.history.history_events import ExperimentEnded\n"
        "from chaos.history.history_writer import HistoryFile\n"
        "from chaos.history.event_codec import from_line\n"
        "history = HistoryFile(Path(sys.argv[1])).__enter__()\n"
        "history.write(from_line(sys.argv[2].encode()))\n"
        "history.write(ExperimentEnded(at_s=3.0))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, path, os.fsdecode(as_line(BEGAN))], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert read_history(path).ended_s == 3.0


def test_out_of_range_values_are_refused(tmp_path: Path) -> None:
    for field in ("service_s", "rate_per_s"):
        path = tmp_path / field
        path.write_text(json.dumps({**json.loads(as_line(BEGAN)), field: 0}) + "\n")
        with pytest.raises(HistoryError, match=f"{field}: Input should be greater than 0"):
            read_history(path)


def test_compressed_history_is_refused_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl.gz"
    path.write_bytes(gzip.compress(as_line(BEGAN)))
    with pytest.raises(HistoryError, match="compressed file; `gunzip` it first"):
        read_history(path)
