"""Dockerfiles pass hadolint and match the expectations of the chart."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy import render
from tests.deploy import helm_rendering
from tests.deploy.dockerfile import IMAGES, base_image, image_name, stages

ENTRY = {"control-plane": "switchgear", "agent": "switchgear-agent", "chaos": "switchgear-chaos"}


@pytest.fixture(params=IMAGES, ids=image_name)
def image(request: pytest.FixtureRequest) -> Path:
    return request.param  # type: ignore[no-any-return]


def test_every_command_has_an_image() -> None:
    assert {image_name(path) for path in IMAGES} == set(ENTRY)


def test_hadolint_passes(image: Path) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    answer = subprocess.run([hadolint, "--no-color", image], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "")


def test_base_images_pin_the_python_of_the_lock(image: Path) -> None:
    assert len(stages(image)) == 2
    assert re.fullmatch(r"python:3\.11\.\d+-slim-[a-z]+(@sha256:[0-9a-f]{64})?", base_image(image))


def test_final_stage_has_no_build_tools(image: Path) -> None:
    build, last = stages(image)
    assert [rest for name, rest in last if name == "COPY"] == ["--from=build /opt/venv /opt/venv"]
    assert not [rest for name, rest in last if name == "RUN"]
    runs = " ".join(rest for name, rest in build if name == "RUN")
    assert "PIP_CONSTRAINT=/src/requirements.lock" in runs
    assert any(name == "ENV" and "PIP_NO_CACHE_DIR=1" in rest for name, rest in build)
    assert not re.search(r"\b(apt-get|apk|curl|wget|sudo)\b", runs)


def test_image_user_matches_the_chart(image: Path) -> None:
    _, last = stages(image)
    (user,) = [rest for name, rest in last if name == "USER"]
    assert user == "65532:65532"
    for _, template in helm_rendering.pods(helm_rendering.documents("everything")):
        for container in helm_rendering.containers(template):
            if container["image"].startswith(("switchgear/", "registry.example/switchgear/")):
                context = template["spec"]["securityContext"] | container["securityContext"]
                assert context["runAsUser"] == 65532


def test_image_has_entrypoint_and_health_check(image: Path) -> None:
    _, last = stages(image)
    last_by_name = dict(last)
    assert json.loads(last_by_name["ENTRYPOINT"]) == [ENTRY[image_name(image)]]
    if image_name(image) == "chaos":
        assert last_by_name["HEALTHCHECK"] == "NONE"
    else:
        _, _, command = last_by_name["HEALTHCHECK"].partition("CMD ")
        program = json.loads(command)
        assert program[:2] == ["python", "-c"]
        compile(program[2], "healthcheck", "exec")
        (port,) = re.findall(r"127\.0\.0\.1:(\d+)/", program[2])
        assert port in last_by_name["EXPOSE"].split()


def _copied(image: Path) -> set[str]:
    build, _ = stages(image)
    return {
        source.removeprefix("./")
        for name, rest in build
        if name == "COPY"
        for source in rest.split()[:-1]
        if not source.startswith("--")
    }


def test_copied_files_exist_and_are_not_ignored(image: Path) -> None:
    ignored = (image.parent / f"{image.name}.dockerignore").read_text().splitlines()
    assert "*" in ignored
    let_in = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert _copied(image) == let_in
    for source in _copied(image):
        assert (render.ROOT / source).exists()


def test_wheel_contents_are_copied(image: Path) -> None:
    import tomllib  # noqa: PLC0415

    project: Mapping[str, object] = tomllib.loads((render.ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]  # type: ignore[index]
    assert {*wheel["packages"], *wheel["force-include"]} <= _copied(image)
    assert {project["project"]["readme"], *project["project"]["license-files"]} <= _copied(image)  # type: ignore[index]


def test_chart_commands_exist_in_our_images() -> None:
    for values in helm_rendering.VALUE_SETS:
        for _, template in helm_rendering.pods(helm_rendering.documents(values)):
            for container in helm_rendering.containers(template):
                name = container["image"].partition("@")[0].partition(":")[0].rpartition("/")[2]
                if name in ENTRY:
                    assert container["command"][0] == ENTRY[name]
