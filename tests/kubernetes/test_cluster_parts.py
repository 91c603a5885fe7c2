"""Where Kubernetes' programs come from: the environment, the cache, a build, or a reason why there are none."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import cluster_parts
from tests.go_stand_in import FAILS, empty_cache, put_go

PROGRAMS = sorted(cluster_parts.VARIABLES.values())
BUILDS = "\n".join(
    [
        "#!/bin/sh",
        'echo "$PWD $*" >> "$CALLS"',
        'while [ "$1" != -o ]; do shift; done',
        'mkdir -p "$2"',
        *(f'touch "$2/{name}"' for name in PROGRAMS),
    ]
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch, cluster_parts.VARIABLES)


@pytest.mark.usefixtures("cache")
def test_environment_names_programs_only_if_both_needed_ones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster_parts.from_environment() is None
    monkeypatch.setenv("KUBE_APISERVER", "/a/kube-apiserver")
    assert cluster_parts.from_environment() is None
    monkeypatch.setenv("ETCD", "/a/etcd")
    found = cluster_parts.from_environment()
    assert found == cluster_parts.Parts(apiserver=Path("/a/kube-apiserver"), etcd=Path("/a/etcd"))
    monkeypatch.setenv("KUBE_CONTROLLER_MANAGER", "/a/kube-controller-manager")
    found = cluster_parts.from_environment()
    assert found is not None
    assert found.controllers == Path("/a/kube-controller-manager")


@pytest.mark.parametrize("release", cluster_parts.RELEASES)
def test_release_is_built_once_outside_the_checkout(cache: Path, release: str) -> None:
    put_go(cache.parent, BUILDS)
    at = cluster_parts.built(release)
    assert at.is_relative_to(cache)
    assert at.name.startswith(cluster_parts.version(release))
    assert sorted(one.name for one in at.iterdir()) == PROGRAMS
    assert cluster_parts.built(release) == at
    (call,) = (cache.parent / "calls").read_text().splitlines()
    assert f"-modfile={cluster_parts.RELEASES[release]}" in call
    assert f"gitVersion={cluster_parts.version(release)}" in call
    assert cluster_parts.variables(release)["KUBE_APISERVER"] == str(at / "kube-apiserver")


def test_releases_do_not_share_a_folder() -> None:
    assert cluster_parts.folder("newest") != cluster_parts.folder("oldest")
    assert cluster_parts.version("newest") != cluster_parts.version("oldest")


def test_failed_build_leaves_nothing_and_states_its_reason(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_go(cache.parent, FAILS)
    assert cluster_parts.main("newest") == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last == (
        f"Kubernetes API server {cluster_parts.version('newest').removeprefix('v')}: SKIPPED: "
        "go build failed: go: k8s.io/api: connection refused"
    )
    assert [one.name for one in cluster_parts.folder("newest").parent.iterdir()] == [".lock"]
    put_go(cache.parent, BUILDS)
    assert cluster_parts.main("newest") == 0
    assert capsys.readouterr().out == f"{cluster_parts.folder('newest')}\n"


def test_without_go_and_programs_the_reason_is_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(cache.parent))
    assert cluster_parts.main("newest") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "SKIPPED: there is no Go" in line


@pytest.mark.usefixtures("cache")
def test_unbuilt_release_is_refused_before_any_test_runs() -> None:
    asked = [sys.executable, "-m", "pytest", "--api-server", "newest", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "make cluster-parts RELEASE=newest" in done.stderr
