"""Served resources by type, for a scrape."""

from prometheus_client.parser import text_string_to_metric_families

from xds_server.metrics.metric_registry import Metrics
from xds_server.model.snapshot import Resource, snapshot
from xds_server.model.type_urls import CLUSTER, SECRET, SHORT_NAMES
from xds_server.reconcile.policy_gate import count_resources


def counted(metrics: Metrics) -> dict[str, float]:
    return {
        sample.labels["type"]: sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        if family.name == "switchgear_snapshot_resources"
        for sample in family.samples
    }


def test_unserved_type_counts_zero() -> None:
    metrics = Metrics()
    pool = Resource(type_url=CLUSTER, name="chat", version="1", value=b"")
    count_resources(metrics, snapshot([pool, Resource(type_url=SECRET, name="engines", version="1", value=b"")]))
    assert counted(metrics) == {**dict.fromkeys(SHORT_NAMES.values(), 0), "CDS": 1, "SDS": 1}
    count_resources(metrics, snapshot([pool]))
    assert counted(metrics) == {**dict.fromkeys(SHORT_NAMES.values(), 0), "CDS": 1}
