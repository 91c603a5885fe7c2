"""The walk-through of docs/kubernetes.md, typed word for word into one shell, as a reader would.

Its programs are real, Envoy and kubectl included; engines are not, and neither is the cluster where no API server
is named. How fast things are is for the benchmarks: here they only have to happen, in this order.
"""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.cluster import running_cluster
from tests.cluster_parts import from_environment
from tests.istio.istio_schemas import CRDS, complaints
from tests.shell import ROOT, carry_out, shell
from tests.walkthrough import steps

PAGE: Final = ROOT / "docs" / "kubernetes.md"


@pytest.fixture
async def real_cluster(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """What the page's shell knows of a real API server; nothing where there is none."""
    if from_environment() is None:
        yield {}
        return
    folder = tmp_path / "cluster"
    folder.mkdir()
    async with running_cluster(folder) as cluster:
        assert cluster.real is not None
        yield {"KUBECONFIG": str(cluster.kubeconfig), "APISERVER": str(cluster.real.pid)}


# Takes 60 s on an idle machine, longer on a busy one.
@pytest.mark.timeout(900)
@pytest.mark.envoy
async def test_commands_of_the_page_print_what_it_shows(tmp_path: Path, real_cluster: dict[str, str]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("a reader asks with curl, and there is none here")
    page = tuple(steps(PAGE.read_text()))
    with shell(tmp_path, real_cluster) as opened:
        for step in page:
            try:
                await asyncio.to_thread(carry_out, PAGE, step, opened)
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


def test_kubectl_klog_lines_are_ignored() -> None:
    (one,) = steps("```console\n$ kubectl wait\nchat condition met\n```\n")
    aside = 'I1122 03:45:22.334244   17526 reflector.go:664] "Warning: watch ended" err="context canceled"\n'
    assert one.shown_by(aside + "chat condition met\n")
    assert one.shown_by("chat condition met\n" + aside.rstrip())
    assert not one.shown_by(aside)
    assert not one.shown_by("Internal error: 22\nchat condition met\n")


def test_a_page_is_read_in_order_with_all_that_is_typed() -> None:
    page = "text\n\n<!-- until -->\n```console\n$ a \\\n>   b\n1\n2\n$ c\n```\n"
    page += "```yaml\n$ no\n```\n```console\n$ d\n```\n"
    assert [(one.line, one.command, one.printed, one.until) for one in steps(page)] == [
        (5, "a \\\n  b", "1\n2", True),
        (9, "c", "", True),
        (15, "d", "", False),
    ]


@pytest.mark.parametrize("block", ["```console\nprinted\n$ a\n```\n", "```console\n```\n"])
def test_block_without_commands_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        list(steps(block))
