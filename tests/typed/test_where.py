"""Types the blocks of docs/where.md into one folder, in order, with the files that the page shows."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from tests.istio import istio_schemas
from tests.istio.gateway_api import gateway_api_schemas
from tests.shell import ROOT

PAGE: Final = (ROOT / "docs" / "where.md").read_text()
FILE: Final = re.compile(r"`([\w/-]+\.(?:yaml|conf|cfg))`:\n\n```\w+\n(.*?)```", re.DOTALL)
BLOCK: Final = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def shown_files() -> Mapping[str, str]:
    """The files that the page shows, by name."""
    return dict(FILE.findall(PAGE))


def test_every_recipe_works_as_written(tmp_path: Path) -> None:
    files = shown_files()
    assert len(files) == 10, sorted(files)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for block in BLOCK.findall(PAGE):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
    for name in ("envoy.yaml", "sidecar.yaml", "eu-envoy.yaml"):
        bootstrap = yaml.safe_load((tmp_path / name).read_text())
        assert bootstrap["node"]["locality"]["zone"] == "zone-a"
    for name, kind in (("gateway-api", "HTTPRoute"), ("istio", "VirtualService")):
        exported = [yaml.safe_load(path.read_text()) for path in sorted((tmp_path / name).iterdir())]
        assert kind in {one["kind"] for one in exported}
        assert (tmp_path / f"lost-{name}.txt").read_text()
    for name in ("imported-pools.yaml", "imported-stack.yaml"):
        kinds = {one["kind"] for one in yaml.safe_load_all((tmp_path / name).read_text())}
        assert "EnginePool" in kinds, name
        assert "demo-model" in (tmp_path / name).read_text()


def test_edges_take_their_objects() -> None:
    files = shown_files()
    assert list(gateway_api_schemas.complaints(yaml.safe_load(files["behind-envoy-gateway.yaml"]))) == []
    assert list(istio_schemas.complaints(yaml.safe_load(files["behind-istio.yaml"]))) == []


def test_tests_named_by_the_page_exist() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", PAGE)
    assert named
    assert [one for one in named if not (ROOT / one).exists()] == []
