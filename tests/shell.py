"""One shell into which tests type a page of the documentation, word for word, as a reader would."""

import errno
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.kubectl import kubectl
from tests.walkthrough import Step

ROOT: Final = Path(__file__).parents[1]
APART: Final = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")
"""A network and processes of its own: ports and names are then those of the page, whatever else runs here."""

LIMIT_S: Final = 240.0
"""How long one command may take, or what it asks for to become so. Longer than what pages let kubectl wait."""


def apart() -> bool:
    """Whether this machine permits separate network and process namespaces."""
    if any(shutil.which(one) is None for one in ("unshare", "ip", "pgrep", "curl")):
        return False
    return subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0


class Shell:
    """One bash in its own folder; its children end with it, and it ends with the test process."""

    def __init__(self, folder: Path, environment: dict[str, str], *, apart: bool = False) -> None:
        self._folder = folder
        self._count = 0
        # Reading from it ends when this process does, however it does: then the whole group is killed.
        watched, self._life = os.pipe()
        self._bash = subprocess.Popen(
            [*(APART if apart else ()), "bash", "--noprofile", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[watched],
        )
        os.close(watched)
        self.type(f"{{ cat <&{watched} >/dev/null; kill -KILL 0; }} &\nexec {watched}<&-")

    def type(self, command: str) -> str:
        """What a command prints, on either of its outputs; fails when it does not end."""
        return self.typed(command)[1]

    def typed(self, command: str) -> tuple[int, str]:
        """A command's exit status, and what it prints; fails when it does not end."""
        assert self._bash.stdin is not None
        self._count += 1
        typed, printed, done = (self._folder / f"{self._count}.{what}" for what in ("typed", "printed", "done"))
        typed.write_text(command + "\n")
        self._bash.stdin.write(f". {typed} </dev/null >{printed} 2>&1; echo $? >{done}\n".encode())
        self._bash.stdin.flush()
        give_up_at = time.monotonic() + LIMIT_S
        # The line is written in one piece.
        while not (done.exists() and done.read_text()):
            if self._bash.poll() is not None or time.monotonic() > give_up_at:
                pytest.fail(f"{command!r} does not end; it printed\n{printed.read_text()}")
            time.sleep(0.01)
        return int(done.read_text()), printed.read_text()

    def end(self) -> None:
        """Kill it and all that it started."""
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        os.close(self._life)


@contextmanager
def shell(folder: Path, cluster: dict[str, str], *, apart: bool = False) -> Iterator[Shell]:
    """A shell with our programs, kubectl and Envoy on the path, and a clean environment."""
    kept = {key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR", "PYTHONPATH") if key in os.environ}
    path = (str(Path(sys.executable).parent), str(kubectl().parent), os.environ["PATH"])
    net, claim = _network()
    # Commands give a server five seconds; one that has no turn on a busy machine answers later.
    patient = {"SWITCHGEAR_TIMEOUT": "60s"}
    environment = {**kept, **patient, **cluster, "PATH": ":".join(path), "REPO": str(ROOT), "NET": net}
    with claim:
        opened = Shell(folder, environment, apart=apart)
        try:
            yield opened
        finally:
            opened.end()


def _network() -> tuple[str, socket.socket]:
    """A network of this machine's own, such as ``127.99.200``, and what keeps others who ask here off it.

    The claim is a name among the kernel's abstract sockets, and ends with its holder, however that ends.
    """
    while True:
        net = "127.{}.{}".format(*random.SystemRandom().sample(range(64, 250), 2))
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0switchgear-net-{net}")
        except OSError as problem:
            claim.close()
            if problem.errno != errno.EADDRINUSE:
                raise
        else:
            return net, claim


def carry_out(page: Path, step: Step, shell: Shell) -> None:
    """Type a step of a page; fails where it does not print what the page says."""
    give_up_at = time.monotonic() + LIMIT_S
    output = shell.type(step.command)
    while not step.shown_by(output):
        if not step.until or time.monotonic() > give_up_at:
            pytest.fail(f"{page.name}:{step.line}\n$ {step.command}\n{step.printed}\n--- but it prints\n{output}")
        time.sleep(0.1)
        output = shell.type(step.command)
