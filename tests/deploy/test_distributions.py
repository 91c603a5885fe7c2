"""Wheel and sdist: equal wherever they are built, and programs that start from nothing but the wheel.

The packages that Switchgear needs come from the environment of the tests, so that no test reads the network.
"""

import ast
import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.shell import ROOT
from tests.wheel import built_sdist, built_wheel

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PYPROJECT["project"]["version"]
POLICY = "policies/examples/single-pool.yaml"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, and the packages it needs."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", *options, wheel], check=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    # A path in a .pth file comes after the wheel, and .pth files there (the checkout's own) are not read.
    (Path(site) / "needs.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin"


def test_two_builds_give_the_same_bytes(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    assert built_wheel(tmp_path / "wheel").read_bytes() == wheel.read_bytes()
    assert built_sdist(tmp_path / "sdist").read_bytes() == sdist.read_bytes()


def test_sdist_builds_the_same_wheel_elsewhere(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert built_wheel(tmp_path / "wheel", source).read_bytes() == wheel.read_bytes()


def test_sdist_contains_no_environment_cache_or_result(sdist: Path) -> None:
    with tarfile.open(sdist) as packed:
        tops = {name.split("/")[1] for name in packed.getnames()}
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    tracked = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert tops - {"PKG-INFO"} <= {line.split("/")[0] for line in tracked.splitlines()}


@pytest.mark.parametrize("program", ["switchgear", "switchgear-agent", "switchgear-chaos"])
def test_programs_of_the_wheel_start_without_a_checkout(bare: Path, program: str, tmp_path: Path) -> None:
    answer = subprocess.run(
        [bare / program, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True, env={}
    )
    assert answer.stdout == f"{program}, version {VERSION}\n"


def test_wheel_validates_and_translates_a_policy(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text((ROOT / POLICY).read_text())
    origin = subprocess.run(
        [bare / "python", "-c", "import policies; print(policies.__path__[0])"],
        cwd=tmp_path, capture_output=True, text=True, check=True, env={},
    )  # fmt: skip
    assert Path(origin.stdout.strip()).is_relative_to(bare.parent)
    for command, shown in (("validate", "valid: 1 pool"), ("translate", "envoy.config.cluster")):
        answer = subprocess.run(
            [bare / "switchgear", command, "-f", "policy.yaml"],
            cwd=tmp_path, capture_output=True, text=True, check=True, env={},
        )  # fmt: skip
        assert shown in answer.stdout, command


def imported(path: Path) -> set[str]:
    """The top-level packages that a module imports, at once or later."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def test_wheel_declares_each_package_that_it_imports() -> None:
    project = PYPROJECT["project"]
    ours = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    modules = [path for top in ours for path in (ROOT / top).rglob("*.py")]
    names = set.union(*map(imported, modules)) - {*ours, *sys.stdlib_module_names}
    users = {*project["dependencies"]}.union(
        *(wanted for extra, wanted in project["optional-dependencies"].items() if extra != "dev")
    )
    declared = {canonicalize_name(Requirement(one).name) for one in users}
    owners = importlib.metadata.packages_distributions()
    # pytest loads `chaos.pytest_plugin` itself, and `chaos/real_vllm` runs as files in vLLM's own environment.
    elsewhere = {"pytest", "kernel_faults"}
    undeclared = {
        name for name in names - elsewhere if not {*map(canonicalize_name, owners.get(name, [name]))} & declared
    }
    assert undeclared == set()


def test_documents_name_this_version() -> None:
    named = re.compile(r"switchgear/(?:control-plane|agent|chaos|\$i):([\w.]+)|switchgear-([\d.]+\w*)-py3")
    pages = [*(ROOT / "deploy" / "images").glob("*.Dockerfile"), *(ROOT / "deploy" / "examples").glob("*.yaml")]
    pages += [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    found = {path.name: {a or b for a, b in named.findall(path.read_text())} for path in pages}
    assert {name: versions for name, versions in found.items() if versions - {VERSION}} == {}
    assert found["quickstart.md"] == found["deploy.md"] == {VERSION}
    assert f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text()


def test_nothing_tells_to_install_a_name_that_is_not_ours() -> None:
    # The owner of `switchgear` at a public index could run code on the readers' machines.
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    files += [
        path
        for top in ("chaos", "engine", "istio", "policies", "xds_server")
        for path in (ROOT / top).rglob("*.py")
    ]
    foreign = re.compile(r"pip install (?:-\S+ )*['\"`]?switchgear")
    assert [path.name for path in files if foreign.search(path.read_text())] == []
