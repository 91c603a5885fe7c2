"""What Envoys, agents, engines, children and servers answer, spoiled: the reader's own error or a value."""

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from engine.agent.agent_config_file import file_settings
from engine.agent.config_error import AgentConfigError
from engine.engine_http import MAX_MISCOUNT, RequestCount, _json, _said, _without_token
from engine.first_token_gate import _error, _is_output
from engine.gpu_check import _CheckProcess
from engine.watch_server import CERTIFICATE_KEY, CLOCK_KEY
from tests.fuzz.mutations import PIECES, broken
from tests.fuzz.test_fuzz_kubernetes_watch import ODD, places
from xds_server.admin.json_http import AdminRequestError, parse_body
from xds_server.admin_api.version_types import ApplyRequest, RollbackRequest
from xds_server.diagnosis.envoy_dump import DumpError, dumped_resources, node_of, runtime_layers
from xds_server.diagnosis.live_state import LiveState
from xds_server.engine_health.agent_metadata import read_agent_metadata

FUZZ = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

DUMPS = "type.googleapis.com/envoy.admin.v3."
DUMP: dict[str, Any] = {
    "configs": [
        {
            "@type": f"{DUMPS}BootstrapConfigDump",
            "bootstrap": {
                "node": {"id": "edge"},
                "static_resources": {
                    "secrets": [{"name": "own", "sds_config": {"path_config_source": {"path": "own.json"}}}]
                },
            },
        },
        {
            "@type": f"{DUMPS}ClustersConfigDump",
            "dynamic_active_clusters": [
                {"cluster": {"name": "chat", "type": "EDS", "eds_cluster_config": {"service_name": "chat|z1"}}},
                {"cluster": {"name": "plain"}, "error_state": {"details": "no"}},
            ],
            "dynamic_warming_clusters": [{"cluster": {"name": "new"}}],
        },
        {
            "@type": f"{DUMPS}EndpointsConfigDump",
            "dynamic_endpoint_configs": [{"endpoint_config": {"cluster_name": "chat|z1", "endpoints": [{}]}}],
        },
        {
            "@type": f"{DUMPS}ListenersConfigDump",
            "dynamic_listeners": [
                {"name": "l", "active_state": {"listener": {"name": "l"}}, "warming_state": {}},
                {"name": "m", "error_state": {"details": "refused"}},
            ],
        },
        {"@type": f"{DUMPS}RoutesConfigDump", "dynamic_route_configs": [{"route_config": {"name": "r"}}]},
        {"@type": f"{DUMPS}SecretsConfigDump", "dynamic_active_secrets": [{"name": "engines"}]},
    ]
}
RUNTIME: dict[str, Any] = {
    "layers": ["static", "switchgear"],
    "entries": {"a": {"final_value": "1", "layer_values": ["", "1"]}},
}
FRAME: dict[str, Any] = {
    "at": 1.5,
    "tables": {"pools": {"chat": {"level": 0}}, "engines": {"chat/e0": {"pool": "chat"}}},
    "events": [{"id": 1, "pool": "chat"}],
}


@st.composite
def odd(draw: st.DrawFn, original: dict[str, Any]) -> dict[str, Any]:
    """The same with one to three values of a wrong type."""
    made: dict[str, Any] = json.loads(json.dumps(original))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([one for one in places(made) if one]))
        holder: Any = made
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = draw(ODD)
    return made


@FUZZ
@given(dump=odd(DUMP))
def test_mutated_config_dump_is_read_or_rejected(dump: dict[str, Any]) -> None:
    with contextlib.suppress(DumpError):
        dumped_resources(dump)
    with contextlib.suppress(DumpError):
        assert isinstance(node_of(dump), str)


@FUZZ
@given(page=odd(RUNTIME))
def test_mutated_envoy_runtime_page_is_read_or_rejected(page: dict[str, Any]) -> None:
    with contextlib.suppress(DumpError):
        runtime_layers(page)


@FUZZ
@given(frames=st.lists(odd(FRAME), min_size=1, max_size=3), first=st.sampled_from(("frame", "change", "")))
def test_mutated_dashboard_frames_are_read_or_rejected(frames: list[dict[str, Any]], first: str) -> None:
    board = LiveState()
    for event, frame in zip((first, "change", "change"), frames, strict=False):
        # What ``top`` says and tries again after.
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError):
            board.take(event, frame)


BODIES = (
    b'{"texts":{"a.yaml":"kind: EnginePool"},"by":"ann","reason":"new","dry_run":true,"canary_percent":10.0,'
    b'"for_s":60,"yes_if_unknown":false,"slo_percent":99.5}',
    b'{"version":3,"by":"ann","reason":"back"}',
)


@pytest.mark.parametrize(
    "shape", [TypeAdapter(ApplyRequest), TypeAdapter(RollbackRequest)], ids=["apply", "rollback"]
)
@FUZZ
@given(content=broken(BODIES))
def test_mutated_apply_request_is_valid_or_rejected(shape: TypeAdapter[Any], content: bytes) -> None:
    try:
        found = parse_body(content, shape)
    except AdminRequestError as error:
        assert error.status == 400  # noqa: PT017 - a sound body raises nothing
        assert len(str(error)) < 1_000  # noqa: PT017 - whatever is sent, an answer is short
        return
    assert isinstance(found, ApplyRequest | RollbackRequest)
    str(found).encode()  # no half of a surrogate pair


@FUZZ
@given(clock=broken((b"1795289500.125", b"nan", b"1e400")), lasts=broken((b"1795289500 1795299500", b"5 -5")))
def test_mutated_agent_metadata_is_read_or_rejected(clock: bytes, lasts: bytes) -> None:
    said = read_agent_metadata(((CLOCK_KEY, clock.decode("latin-1")), (CERTIFICATE_KEY, lasts)), 1.8e9)
    for one in (said.clock_ahead_s, said.certificate_begins_unix_s, said.certificate_ends_unix_s):
        assert one is None or math.isfinite(one)


LINES = (b'{"stage":"memory"}', b'{"outcome":"ok","detail":"3 of 3","gpu_ms":1.25}', b"a library that prints")


@FUZZ
@given(lines=st.lists(broken(LINES), max_size=3))
def test_lines_of_the_deep_check(lines: list[bytes]) -> None:
    run = _CheckProcess()
    for line in (*lines, *(LINES[1].replace(b"1.25", piece) for piece in PIECES)):
        run.on_line(line)
    assert run.gpu_ms is None or (math.isfinite(run.gpu_ms) and run.gpu_ms >= 0)


EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
    b'data: {"error":{"message":"engine dead","code":503}}',
    b": ping",
    b"data: [DONE]",
)


@FUZZ
@given(event=broken(EVENTS), role_counts=st.booleans())
def test_the_first_event_of_a_stream(event: bytes, role_counts: bool) -> None:
    error = _error(event)
    assert error is None or 400 <= error[0] <= 599
    assert isinstance(_is_output(event, role_counts=role_counts), bool)


ANSWERS = (
    b'{"server_load":3}',
    b'{"server_load":-3}',
    b'{"choices":[{"index":0,"text":"hello"}]}',
    b'{"error":{"message":"no","code":503}}',
    b'{"detail":"Not Found"}',
)


@FUZZ
@given(contents=st.lists(broken(ANSWERS), min_size=1), started_at_s=st.sampled_from([None, 1.7e9]))
def test_counts_of_an_engine(contents: list[bytes], started_at_s: float | None) -> None:
    counts = RequestCount()
    counts.started(started_at_s)
    for content in contents:
        answer = _json(content)
        count = counts.of(answer)
        assert count is None or count >= 0
        if count is not None and started_at_s is None:
            assert count == answer.get("server_load", answer.get("in_flight"))
        elif count is not None and "server_load" in answer:
            assert answer["server_load"] <= count <= answer["server_load"] + MAX_MISCOUNT


@FUZZ
@given(content=broken(ANSWERS))
def test_json_of_an_engine(content: bytes) -> None:
    failure = _without_token("/v1/completions", content)
    said = _said(content) if failure is None else failure.detail
    assert said.isprintable()
    assert len(said) < 1_000


SETTINGS = (
    b"engine: 127.0.0.1:8000\nhttp: 127.0.0.1:0\nprobeEvery: 1s\nallowedClients: [a, b]\n",
    b"? [a]\n: 1\n",
    b"&a [*a]: 1\n",
)


@FUZZ
@given(content=broken(SETTINGS))
def test_settings_of_an_agent(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "agent.yaml"
    path.write_bytes(content)
    with contextlib.suppress(AgentConfigError):
        for name, place, text in file_settings(path):
            assert place.startswith(str(path))
            assert isinstance(name, str)
            assert isinstance(text, str)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: \x00", "1"),
        (b"[" * 1_500, "too deep"),
        (b"? [a]\n: 1\n", "a key must be a name"),
        (b"a: \xff", "utf-8"),
    ],
)
def test_settings_that_once_ended_in_a_traceback(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_bytes(content)
    with pytest.raises(AgentConfigError, match=said):
        list(file_settings(path))
