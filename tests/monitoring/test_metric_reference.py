"""A server exposes exactly the metric table: names, types and labels."""

import asyncio
import re
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import aiohttp
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from deploy.render import ROOT
from tests.eventually import eventually
from tests.monitoring.large_fleet import exposed
from tests.monitoring.promtool import needed, promtool
from xds_server.app.cluster_feed import ClusterFeed
from xds_server.auth.lab_ca import LAB_CERTIFICATES, make_certificates
from xds_server.auth.server_auth import ServerAuth
from xds_server.metrics.control_metrics import ControlPlaneMetrics
from xds_server.metrics.metric_reference import LARGE, markdown
from xds_server.metrics.metric_spec import OPEN, MetricSpec
from xds_server.metrics.metric_table import TABLE
from xds_server.observe.tracing.batch_processor import batch_processor
from xds_server.secrets.secret_folder import SecretFolder
from xds_server.serve_config import ServeConfig

LIMIT_S = 60.0
ALERTED = {"switchgear_departure_hop_seconds"}
"""The histogram used by an alert."""
SERVE = str(Path(sys.executable).with_name("switchgear"))
POLICY = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec: {model: m, endpoints: [{address: 127.0.0.1, port: 9}], probe: {enabled: false}}
"""


async def scraped(policies: Path) -> str:
    """/metrics of a server that has just started."""
    server = await asyncio.create_subprocess_exec(
        *(SERVE, "serve", "-f", str(policies), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        *("--log-format", "json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert server.stdout is not None
        admin = (await asyncio.wait_for(server.stdout.readline(), LIMIT_S)).decode().split('"admin": "')[1]
        async with aiohttp.ClientSession() as session:

            async def metrics() -> str:
                async with session.get(f"http://{admin.split(chr(34))[0]}/metrics") as answer:
                    return await answer.text()

            await eventually(metrics, "/metrics answers", LIMIT_S)
            return await metrics()
    finally:
        server.terminate()
        await asyncio.wait_for(server.wait(), LIMIT_S)


def documented(family: Metric) -> MetricSpec:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    assert name in TABLE, f"{name} is exposed but not in xds_server/metrics"
    return TABLE[name]


def judge(families: Iterable[Metric]) -> set[str]:
    """Names of exposed metrics, each checked against its table row."""
    found = set()
    for family in families:
        row = documented(family)
        found.add(row.name)
        assert family.type == row.kind, row.name
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            assert set(labels) == set(row.labels), f"{sample.name}: {labels}"
            for key, value in labels.items():
                assert key in OPEN or value in row.labels[key], f"{sample.name}: {key}={value}"
    return found


async def test_running_server_exposes_exactly_the_table(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text(POLICY)
    families = list(text_string_to_metric_families(await scraped(tmp_path)))
    found = judge(families)
    assert {name for name, row in TABLE.items() if not row.where} == found
    for family in families:
        row = documented(family)
        if row.labels and not row.per and (family.type == "counter" or row.name in ALERTED):
            assert len(family.samples) == row.most_series({}), (
                f"{row.name}: no zero series, so increase() would miss its first event"
            )


def test_metrics_of_optional_settings_are_in_the_table(tmp_path: Path) -> None:
    make_certificates(tmp_path, LAB_CERTIFICATES, lasts=timedelta(days=1))
    secrets = tmp_path / "secrets"
    (secrets / "engines").mkdir(parents=True)
    (secrets / "engines" / "ca.crt").write_bytes((tmp_path / "ca.crt").read_bytes())
    rules = tmp_path / "access.yaml"
    rules.write_text("apiVersion: switchgear.dev/v1alpha1\nkind: Access\nmetadata: {name: a}\nspec: {}\n")
    config = ServeConfig(
        kubernetes=True,
        tls_cert=tmp_path / "server.crt",
        tls_key=tmp_path / "server.key",
        tls_ca=tmp_path / "ca.crt",
        access=rules,
    )
    traces = batch_processor("http://127.0.0.1:4318")  # nothing is sent
    traces.stop()
    folder = SecretFolder(secrets)
    found = judge(
        [
            *ClusterFeed(config).families(),
            *ServerAuth(config).families(),
            *folder.families(),
            *traces.families(),
        ]
    )
    assert {name for name, row in TABLE.items() if row.where} <= found


def test_watched_resources_match_the_declared_labels() -> None:
    (stale,) = (one for one in ClusterFeed(ServeConfig(kubernetes=True)).families() if "stale" in one.name)
    watched = {sample.labels["resource"] for sample in stale.samples}
    assert watched == set(ControlPlaneMetrics.source_stale_seconds.labels["resource"])


def test_large_fleet_stays_within_the_stated_series() -> None:
    families = list(text_string_to_metric_families(exposed(LARGE).decode()))
    judge(families)
    for family in families:
        row = documented(family)
        assert len(family.samples) <= row.most_series(LARGE), row.name
    counts = {family.name: len(family.samples) for family in families}
    assert counts["switchgear_engine_admitted_ratio"] == LARGE["engine"], "wrong fleet size"
    assert counts["switchgear_telemetry_age_seconds"] == 2 * LARGE["node"]
    latency = TABLE["switchgear_attempt_first_byte_seconds"]
    # A route has one of the two classes.
    assert counts[latency.name] == latency.most_series(LARGE) / 2, "an outcome of a route is missing"


@needed
def test_promtool_accepts_the_metric_names() -> None:
    code, output = promtool(
        "check", "metrics", stdin=exposed({**LARGE, "engine": 4, "node": 2, "pool": 2}).decode()
    )
    assert (code, output.splitlines()) == (0, [])


def test_reference_is_current() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == markdown(), "run `make generated`"


@needed
def test_promtool_accepts_the_scrape_configs_of_the_reference(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", markdown(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 1
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        code, output = promtool("check", "config", "--syntax-only", str(path))
        assert code == 0, output


def test_every_row_has_help_action_and_unit() -> None:
    for name, row in TABLE.items():
        assert row.help.endswith("."), name
        assert row.do, name
        assert all(values or key in OPEN for key, values in row.labels.items()), name
        opened = [key for key, values in row.labels.items() if not values]
        assert not opened or row.per, f"{name}: nothing bounds {opened}"
        unit = {"seconds": "_seconds", "bytes": "_bytes", "ratio": "_ratio", "GPU-seconds": "_seconds"}.get(
            row.unit
        )
        assert unit is None or unit in name, name
