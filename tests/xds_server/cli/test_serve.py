"""``switchgear serve`` starts, prints its addresses, stops cleanly, and refuses invalid settings."""

import asyncio
import gc
import json
import logging
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import structlog

from engine.address import ListenAddress
from xds_server.app.application import BoundAddresses
from xds_server.cli import main
from xds_server.cli import serve as serve_module
from xds_server.engine_health.engine_prober import Prober
from xds_server.serve_config import ServeConfig

LIMIT_S = 60.0
SWITCHGEAR = str(Path(sys.executable).with_name("switchgear"))
PORTS = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
POLICY = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec: {model: m, endpoints: [{address: 127.0.0.1, port: 9}], probe: {enabled: false}}
"""


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Commands that run in this process set up its logging; other tests expect it untouched."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "chat.yaml").write_text(POLICY)
    return tmp_path / "policies"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_serve_prints_its_addresses_and_stops_on_a_signal(policies: Path, number: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        *(SWITCHGEAR, "serve", "-f", str(policies), *PORTS, "--log-format", "json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), LIMIT_S)
        for address in json.loads(line).values():
            _, writer = await asyncio.open_connection(*address.split(":"))
            writer.close()
            await writer.wait_closed()
        process.send_signal(number)
        _, log = await asyncio.wait_for(process.communicate(), LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, log.decode()
    events = [json.loads(entry)["event"] for entry in log.decode().splitlines()]
    in_force = "decide.policies"
    expected = ["serve.started", "policies.accepted", in_force, "serve.listening", "serve.stopped"]
    assert [event for event in events if event != "serve.waiting"] == expected


async def test_serve_names_its_wait_until_the_port_is_open(policies: Path) -> None:
    (policies / "chat.yaml").write_text(POLICY.replace("model:", "modle:"))
    process = await asyncio.create_subprocess_exec(
        *(SWITCHGEAR, "serve", "-f", str(policies), *PORTS),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        waiting = f"waiting for valid policies in {policies} (refused: see the errors above); then serving xDS\n"
        while await asyncio.wait_for(process.stderr.readline(), LIMIT_S) != waiting.encode():
            assert process.returncode is None
        (policies / "chat.yaml").write_text(POLICY)
        while not (line := await asyncio.wait_for(process.stderr.readline(), LIMIT_S)).startswith(
            b"serving xDS on"
        ):
            assert line, "serve has ended"
        assert process.stdout is not None
        ports = json.loads(await asyncio.wait_for(process.stdout.readline(), LIMIT_S))
        assert line.decode() == f"serving xDS on {ports['xds']}, admin on {ports['admin']}\n"
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("setting", ["--listen", "--admin"])
def test_port_in_use_is_a_usage_error(policies: Path, setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "-f", str(policies), *PORTS, setting, address]) == 2
    error = capsys.readouterr().err
    assert setting in error
    assert address in error
    assert "in use" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--listen", "nowhere"), "HOST:PORT"),
        (("--settle", "5"), "write a number and a unit"),
        (("--poll", "1ms"), "--poll must be between 50ms and 1h"),
        (("--log-format", "xml"), "xml"),
        ((), "-f"),
    ],
)
def test_invalid_settings_are_usage_errors(
    policies: Path, flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("-f", str(policies)) if flags else ()
    assert main(["serve", *named, *flags]) == 2
    assert says in capsys.readouterr().err


def test_bug_in_a_task_exits_with_a_traceback(
    policies: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(_: Prober) -> None:
        raise RuntimeError("a bug in the prober")

    monkeypatch.setattr(Prober, "run", broken)
    assert main(["serve", "-f", str(policies), *PORTS]) == serve_module.CRASHED
    error = capsys.readouterr().err
    assert "serve.crashed" in error
    assert "a bug in the prober" in error


def test_flags_and_environment_mirror_the_settings(policies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ServeConfig] = []

    async def note(config: ServeConfig, *_: object, **__: object) -> None:
        seen.append(config)

    monkeypatch.setattr(serve_module, "serve", note)
    monkeypatch.setenv("SWITCHGEAR_POLICIES", f"{policies}:/etc/more")
    monkeypatch.setenv("SWITCHGEAR_ALLOW_SHRINK", "true")
    monkeypatch.setenv("SWITCHGEAR_LISTEN", "[::1]:1")
    assert main(["serve", "--settle", "250ms", "--log-level", "warning"]) == 0
    assert seen == [
        ServeConfig(
            policies=(policies, Path("/etc/more")),
            listen=ListenAddress("::1", 1),
            allow_shrink=True,
            settle_s=0.25,
            log_level="warning",
        )
    ]
    assert all(isinstance(option, click.Option) and option.help for option in serve_module.command.params)


def test_the_settings_of_a_cluster_are_flags_and_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ServeConfig] = []

    async def note(config: ServeConfig, *_: object, **__: object) -> None:
        seen.append(config)

    monkeypatch.setattr(serve_module, "serve", note)
    monkeypatch.setenv("SWITCHGEAR_KUBERNETES", "true")
    monkeypatch.setenv("SWITCHGEAR_NAMESPACE", "a b")
    monkeypatch.setenv("SWITCHGEAR_WRITE_STATUS", "false")
    assert main(["serve", "--lease", "fleet/switchgear", "--identity", "one"]) == 0
    assert main(["serve", "--namespace", "c", "--write-status", "--kubeconfig", "k", "--kube-context", "x"]) == 0
    assert seen == [
        ServeConfig(
            kubernetes=True,
            namespaces=("a", "b"),
            write_status=False,
            lease="fleet/switchgear",
            identity="one",
        ),
        ServeConfig(kubernetes=True, namespaces=("c",), kubeconfig=Path("k"), context="x"),
    ]


def test_missing_cluster_configuration_is_reported_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "kubeconfig"
    assert main(["serve", "--kubernetes", "--kubeconfig", str(missing), *PORTS]) == 2
    assert "--kubeconfig: " in capsys.readouterr().err


def test_who_serves_from_files_loads_nothing_of_kubernetes() -> None:
    script = (
        "import sys, xds_server.cli.serve, xds_server.app.application\n"
        "from xds_server.app.policy_parts import ServeConfig, policy_feed\n"
        "assert policy_feed(ServeConfig(policies=('x',)), lambda *_: None).source == 'files'\n"
        "loaded = [name for name in sys.modules if name.partition('.')[0] == 'kubernetes']\n"
        "assert not loaded, loaded[:3]\n"
        "assert policy_feed(ServeConfig(kubernetes=True), lambda *_: None).source == 'kubernetes'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


async def test_what_starting_leaves_is_collected_before_it_says_that_it_serves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And from then on seldom: reports hold no cycles, and looking for them is a third of the work."""
    said_when_collected: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: said_when_collected.append(capsys.readouterr().out))
    before = gc.get_threshold()
    try:
        serve_module._settled(
            BoundAddresses(xds=ListenAddress("127.0.0.1", 1), admin=ListenAddress("127.0.0.1", 2))
        )
        assert gc.get_threshold()[0] == 50_000
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
    assert said_when_collected == [""]
    assert json.loads(capsys.readouterr().out) == {"xds": "127.0.0.1:1", "admin": "127.0.0.1:2"}


async def test_what_became_garbage_since_is_collected_time_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, it waits until 50 000 objects have gathered, and memory climbs meanwhile."""
    monkeypatch.setattr(serve_module, "COLLECT_EACH_S", 0.0)
    monkeypatch.setattr(serve_module, "FULL_SHARE", 1.0)
    trimmed: list[bool] = []
    monkeypatch.setattr(serve_module, "trim_memory", lambda: trimmed.append(True))
    before = gc.get_threshold()
    gc.disable()
    try:
        serve_module._settled(
            BoundAddresses(xds=ListenAddress("127.0.0.1", 1), admin=ListenAddress("127.0.0.1", 2))
        )
        for age in range(3):
            ring = _Ring()
            gone = weakref.ref(ring)
            ring.itself = ring
            for generation in range(age):
                gc.collect(generation)
            del ring
            async with asyncio.timeout(LIMIT_S):
                while gone() is not None:
                    await asyncio.sleep(0)
        assert trimmed, "memory that is free again goes back to the system"
    finally:
        gc.enable()
        gc.unfreeze()
        gc.set_threshold(*before)


class _Ring:
    itself: "_Ring | None" = None
