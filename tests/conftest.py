"""What every test may use."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

from tests import cluster_parts, real_parts
from tests.api_server import ApiServer, running_api_server
from tests.cluster import Cluster, cluster_of, running_cluster
from tests.go_build import PartsError
from tests.part_results import record

# xdist sets it in workers; the commands under test would take their pipes for a terminal.
os.environ.pop("COLUMNS", None)

# Tests must not fail on an overloaded machine: benchmarks measure speed.
PATIENT: Final = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
# What is drawn follows from the test's own text, so that a run that fails fails because of a change.
hypothesis.settings.register_profile("steady", parent=PATIENT, derandomize=True)
# For `make test-fast`, where a test does not name a number of its own.
hypothesis.settings.register_profile("quick", parent=PATIENT, derandomize=True, max_examples=15)
# To find new failures: random seeds in each run, earlier failures first.
hypothesis.settings.register_profile("explore", parent=PATIENT, print_blob=True)
hypothesis.settings.load_profile("steady")


def pytest_sessionstart() -> None:
    """Nothing drawn may depend on what this process happens to have imported already.

    Hypothesis also draws constants that it finds in modules of ours: in whichever are loaded by then, and tests
    that ran before in the same worker load more of them. No setting turns that off (6.170).
    """
    if hypothesis.settings.default.derandomize:
        assert callable(providers.is_local_module_file)
        providers.is_local_module_file = lambda _path: False


def pytest_configure(config: pytest.Config) -> None:
    """Name the programs of the release that ``--api-server`` asks for, so that children find them too."""
    release = config.getoption("--api-server")
    if release == "double":
        for name in cluster_parts.VARIABLES:
            os.environ.pop(name, None)
    elif release != "environment" and cluster_parts.from_environment() is None:
        try:
            os.environ.update(cluster_parts.variables(release))
        except PartsError as why:
            raise pytest.UsageError(str(why)) from None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Report the run as that of the real parts that it is for."""
    for result in real_parts.results_of_run(terminalreporter, exitstatus):
        record(result)
        terminalreporter.write_line(str(result))


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer | None]:
    """The real API server of this test process, None where the double serves."""
    parts = cluster_parts.from_environment()
    if parts is None:
        yield None
        return
    # Each test has a loop of its own, and this server outlives them.
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running = running_api_server(parts, tmp_path_factory.mktemp("api-server"))
    try:
        yield asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
async def cluster(tmp_path: Path, api_server: ApiServer | None) -> AsyncIterator[Cluster]:
    """A Kubernetes API server with nothing in it, the test's own or swept afterwards; see ``tests.cluster``."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    if api_server is None:
        async with running_cluster(folder) as found:
            yield found
        return
    async with cluster_of(api_server, folder) as found:
        try:
            yield found
        finally:
            await api_server.sweep()


TESTS = Path(__file__).parent
WITH_WHOLE_PROGRAMS: Final = ("with_envoy", "typed", "incident", "kubernetes", "hostile")
SLOW: Final = (
    *WITH_WHOLE_PROGRAMS,
    *("benchmarks", "deploy", "fuzz", "monitoring", "upgrade", "with_peers", "with_vllm"),
    "test_repository_layout.py",
    *(
        f"chaos/{one}"
        for one in ("cli", "demo", "fake_engine", "faults", "gate", "lab", "load", "netem", "real_vllm")
    ),
    *(f"chaos/{one}" for one in ("simulator", "xds_tap", "planning/test_cli.py", "test_pytest_plugin.py")),
    "chaos/lab_page/test_lab_page.py",
    *(f"engine/agent/test_{one}.py" for one in ("agent", "agent_with_tls_engine", "engine_monitor")),
    "engine/gpu/test_gpu_source.py",
    *("istio/export/test_istio_crd_schemas.py", "istio/gateway_api/test_gateway_api_crd_schemas.py"),
    *("istio/imports/test_fuzz_imports.py", "istio/live"),
    *(
        "xds_server/admin/dashboard",
        "xds_server/app/test_region_summary.py",
        "xds_server/publish/test_grpc_ads.py",
    ),
    *(
        f"xds_server/cli/test_{one}.py"
        for one in ("completion", "eject_drain_restore_audit", "interrupt", "serve", "serve_engine_tls")
    ),
    *("xds_server/decide/admission/test_admission_simulation.py", "xds_server/engine_health"),
    "xds_server/decide/ejection/test_straggler_false_positives.py",
    "xds_server/observe/tracing/test_batch_processor.py",
    *(f"xds_server/translate/test_{one}.py" for one in ("internal_listeners", "live_declarations", "residency")),
    *("xds_server/wire/test_eds.py", "xds_server/wire/test_encode.py"),
)
"""Folders and files below ``tests`` whose tests start processes, wait on real clocks or compute for long."""


def is_slow(path: Path) -> bool:
    """Whether a file or folder of tests is in ``SLOW``."""
    return any(path.is_relative_to(TESTS / one) for one in SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import slow files where they are deselected: that takes as long as many tests."""
    return True if "not slow" in config.option.markexpr and is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests; whole programs come first: a long one that begins last keeps one process busy, alone."""
    for item in items:
        if item.get_closest_marker("envoy") or is_slow(item.path):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.relative_to(TESTS).parts[0] not in WITH_WHOLE_PROGRAMS)


PICTURES = Path(__file__).parent.parent / "docs" / "images"


@pytest.fixture
def pictures(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where pictures of pages go: with ``--update-pictures`` to the documentation, that shows them."""
    return PICTURES if request.config.getoption("--update-pictures") else tmp_path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--api-server",
        choices=("environment", "double", *cluster_parts.RELEASES),
        default="environment",
        help="Kubernetes API: the double, a release built by `make cluster-parts`, or what KUBE_APISERVER and "
        "ETCD name (default; the double where they name nothing)",
    )
    parser.addoption(
        "--real-part",
        action="append",
        choices=tuple(real_parts.MEASURED),
        default=[],
        help="report the result as that of this product, in the version that runs; may be repeated",
    )
    parser.addoption(
        "--update-pictures", action="store_true", help="put the pictures that tests make into the documentation"
    )
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what golden cases compile to now, and delete what they no longer do; the diff is the review",
    )
