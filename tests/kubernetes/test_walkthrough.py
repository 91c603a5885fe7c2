"""The walk-through of docs/kubernetes.md, typed word for word into one shell, as a reader would.

Its programs are real, Envoy and kubectl included; engines are not, and neither is the cluster where no API server
is named. How fast things are is for the benchmarks: here they only have to happen, in this order.
"""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.cluster import running_cluster
from tests.istio.published import CRDS, complaints
from tests.kubectl import kubectl

from .walkthrough import Step, steps

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "kubernetes.md"
_LIMIT_S: Final = 90.0
"""How long one command may take, or what it asks for to become so."""


class Shell:
    """One bash in a folder of its own; what it started ends with it, and with whoever started it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._count = 0
        # Reading from it ends when this process does, however it does: then the whole group is killed.
        watched, self._life = os.pipe()
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
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
        assert self._bash.stdin is not None
        self._count += 1
        typed, printed, done = (self._folder / f"{self._count}.{what}" for what in ("typed", "printed", "done"))
        typed.write_text(command + "\n")
        self._bash.stdin.write(f". {typed} </dev/null >{printed} 2>&1; : >{done}\n".encode())
        self._bash.stdin.flush()
        give_up_at = time.monotonic() + _LIMIT_S
        while not done.exists():
            if self._bash.poll() is not None or time.monotonic() > give_up_at:
                pytest.fail(f"{command!r} does not end; it printed\n{printed.read_text()}")
            time.sleep(0.01)
        return printed.read_text()

    def end(self) -> None:
        """Kill it and all that it started."""
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        os.close(self._life)


@contextmanager
def shell(folder: Path, cluster: dict[str, str]) -> Iterator[Shell]:
    """A shell that finds our programs, kubectl and Envoy, and knows nothing of whoever runs the tests."""
    kept = {key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR", "PYTHONPATH") if key in os.environ}
    path = (str(Path(sys.executable).parent), str(kubectl().parent), os.environ["PATH"])
    # Somewhere on this machine where nobody else is likely to be at the same time.
    net = "127.{}.{}".format(*random.SystemRandom().sample(range(64, 250), 2))
    environment = {**kept, **cluster, "PATH": ":".join(path), "REPO": str(ROOT), "NET": net}
    opened = Shell(folder, environment)
    try:
        yield opened
    finally:
        opened.end()


@pytest.fixture
async def real_cluster(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """What the page's shell knows of a real API server; nothing where there is none."""
    if not (os.environ.get("KUBE_APISERVER") and os.environ.get("ETCD")):
        yield {}
        return
    folder = tmp_path / "cluster"
    folder.mkdir()
    async with running_cluster(folder) as cluster:
        yield {"KUBECONFIG": str(cluster.kubeconfig), "APISERVER": str(cluster.pid)}


def carry_out(step: Step, shell: Shell) -> None:
    """Type a step; fails where it does not print what the page says."""
    give_up_at = time.monotonic() + _LIMIT_S
    output = shell.type(step.command)
    while not step.shown_by(output):
        if not step.until or time.monotonic() > give_up_at:
            pytest.fail(f"{PAGE.name}:{step.line}\n$ {step.command}\n{step.printed}\n--- but it prints\n{output}")
        time.sleep(0.1)
        output = shell.type(step.command)


# A minute where nobody else wants the cores, which on a busy machine nobody can promise.
@pytest.mark.timeout(400)
@pytest.mark.envoy
async def test_what_the_page_says_is_what_happens(tmp_path: Path, real_cluster: dict[str, str]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("a reader asks with curl, and there is none here")
    page = tuple(steps(PAGE.read_text()))
    with shell(tmp_path, real_cluster) as opened:
        for step in page:
            try:
                await asyncio.to_thread(carry_out, step, opened)
            except pytest.fail.Exception:
                for log in sorted(tmp_path.glob("lab/*.log")):
                    sys.stderr.write(f"--- {log.name}\n" + log.read_text()[-3000:])
                raise
    exported = [yaml.safe_load(file.read_text()) for file in sorted(tmp_path.glob("lab/istio/*.yaml"))]
    assert len(exported) > 5
    if CRDS.exists():
        assert [problem for one in exported for problem in complaints(one)] == []


def test_dots_stand_for_what_differs_and_for_nothing_else() -> None:
    (one,) = steps("```console\n$ say\na: ...\nb   c\n```\n")
    assert one.shown_by("a: 1\nand 2\n b c\n")
    assert not one.shown_by("a: 1\nb d\n")
    assert not one.shown_by("a: 1\nb c\nmore\n")
    (silent,) = steps("```console\n$ say\n```\n")
    assert silent.shown_by("\n")
    assert not silent.shown_by("a word")


def test_a_page_is_read_in_order_with_all_that_is_typed() -> None:
    page = "text\n\n<!-- until -->\n```console\n$ a \\\n>   b\n1\n2\n$ c\n```\n"
    page += "```yaml\n$ no\n```\n```console\n$ d\n```\n"
    assert [(one.line, one.command, one.printed, one.until) for one in steps(page)] == [
        (5, "a \\\n  b", "1\n2", True),
        (9, "c", "", True),
        (15, "d", "", False),
    ]


@pytest.mark.parametrize("block", ["```console\nprinted\n$ a\n```\n", "```console\n```\n"])
def test_a_block_that_types_nothing_is_no_walk_through(block: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        list(steps(block))
