"""Where egctl comes from: the environment, the cache, a build, or a reason why there is none."""

from pathlib import Path

import pytest

from tests import mesh_parts
from tests.go_build import PartsError
from tests.go_stand_in import FAILS, empty_cache, put_go
from tests.mesh_parts import ENVOY_GATEWAY

BUILDS = """#!/bin/sh
echo "$*" >> "$CALLS"
for last; do :; done
mkdir -p "$GOBIN"
name=${last##*/}
printf 'mod\\tgithub.com/envoyproxy/gateway\\tv1.9.1\\th1:x\\n' > "$GOBIN/${name%@*}"
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch, [one.variable for one in mesh_parts.PARTS.values()])


@pytest.mark.parametrize("part", mesh_parts.PARTS.values(), ids=mesh_parts.PARTS)
def test_program_is_built_once_outside_the_checkout(cache: Path, part: mesh_parts.MeshPart) -> None:
    put_go(cache.parent, BUILDS)
    at = mesh_parts.built(part)
    assert at.is_relative_to(cache)
    assert at.name == part.program
    assert mesh_parts.built(part) == at == part.found()
    (call,) = (cache.parent / "calls").read_text().splitlines()
    assert call.endswith(f" {part.wanted}")
    pinned = (part.pins / "go.mod").read_text() if part.pins else call
    assert part.module in pinned
    assert f"v{part.version}" in pinned


@pytest.mark.usefixtures("cache")
def test_named_program_is_used_in_its_own_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = tmp_path / "egctl"
    monkeypatch.setenv("EGCTL", str(at))
    assert ENVOY_GATEWAY.found() is None
    with pytest.raises(PartsError, match=f"EGCTL names {at}, which is not a file"):
        mesh_parts.built(ENVOY_GATEWAY)
    at.write_bytes(b"\x00mod\tgithub.com/envoyproxy/gateway\tv1.10.0\th1:x\n\x00")
    assert mesh_parts.built(ENVOY_GATEWAY) == at
    assert mesh_parts.version(ENVOY_GATEWAY) == "1.10.0"
    at.write_bytes(b"\x00mod\tgithub.com/envoyproxy/gateway\t(devel)\n\x00")
    with pytest.raises(PartsError, match=r"was not built from a version of github\.com/envoyproxy/gateway"):
        mesh_parts.version(ENVOY_GATEWAY)


@pytest.mark.usefixtures("cache")
def test_missing_program_skips_with_the_reason() -> None:
    with pytest.raises(pytest.skip.Exception, match="no egctl: `make mesh-parts` builds it, or EGCTL names one"):
        mesh_parts.required(ENVOY_GATEWAY)
    assert mesh_parts.version(ENVOY_GATEWAY) == ENVOY_GATEWAY.version


def test_failed_build_leaves_nothing_and_states_its_reason(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_go(cache.parent, FAILS)
    assert mesh_parts.main([ENVOY_GATEWAY.name]) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last == (
        f"Envoy Gateway (egctl) {ENVOY_GATEWAY.version}: SKIPPED: "
        "go install failed: go: k8s.io/api: connection refused"
    )
    assert [one.name for one in ENVOY_GATEWAY.cached.parent.parent.iterdir()] == [".lock"]
    put_go(cache.parent, BUILDS)
    assert mesh_parts.main([ENVOY_GATEWAY.name]) == 0
    assert capsys.readouterr().out == f"{ENVOY_GATEWAY.cached}\n"


def test_without_go_and_programs_the_reason_is_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(cache.parent))
    assert mesh_parts.main([ENVOY_GATEWAY.name]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "SKIPPED: there is no Go" in line
