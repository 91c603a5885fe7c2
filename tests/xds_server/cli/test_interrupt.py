"""Ctrl-C ends a command with 130 and a closed pipe with 0, without a traceback, whenever they come."""

import os
import subprocess
import sys

import pytest

LIMIT_S = 60.0
INTERRUPTED_AT_IMPORT = """
import os, signal, sys

MODULE = sys.argv.pop(1)

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from {program} import entry
entry()
"""


@pytest.mark.parametrize(
    ("program", "module"),
    [
        ("xds_server.__main__", "xds_server.cli"),
        ("xds_server.__main__", "click"),
        ("xds_server.__main__", "xds_server.cli.get"),
        ("xds_server.__main__", "xds_server.cli.get_columns"),
        ("chaos.__main__", "click"),
        ("chaos.__main__", "chaos.cli"),
        ("engine.agent.__main__", "click"),
    ],
)
def test_interrupt_while_importing_shows_no_traceback(program: str, module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT_IMPORT.format(program=program), module, "get", "engines"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "SWITCHGEAR_ADMIN_URL": "http://127.0.0.1:1"},
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_interrupt_at_exit_shows_no_traceback() -> None:
    text = (
        "import atexit, os, signal, sys\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "from xds_server.__main__ import entry\n"
        "sys.argv[1:] = ['options']\n"
        "entry()\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


def test_ignored_interrupt_stays_ignored() -> None:
    text = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from command_line.interrupts import exit_on_interrupt, raise_on_interrupt\n"
        "exit_on_interrupt(); raise_on_interrupt(); os.kill(os.getpid(), signal.SIGINT)\n"
    )
    assert subprocess.run([sys.executable, "-c", text], timeout=LIMIT_S, check=False).returncode == 0


@pytest.mark.parametrize("module", ["xds_server", "chaos", "engine.agent"])
def test_finished_reader_ends_with_0(module: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, "completion", "bash"],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
