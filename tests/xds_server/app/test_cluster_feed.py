"""Identity of a replica, and its state before the first read."""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xds_server.app import cluster_feed
from xds_server.app.cluster_feed import ClusterFeed, lease_identity
from xds_server.k8s.replica_status import ReplicaStatus
from xds_server.model.remote_proxies import NO_REMOTE_PROXIES
from xds_server.serve_config import ServeConfig


def test_lease_is_named_or_in_the_own_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_feed, "_NAMESPACE_FILE", tmp_path / "namespace")
    outside = lease_identity(ServeConfig(kubernetes=True))
    assert (outside.namespace, outside.lease, outside.identity) == ("default", "switchgear", socket.gethostname())
    (tmp_path / "namespace").write_text("fleet\n")
    assert lease_identity(ServeConfig(kubernetes=True)).namespace == "fleet"
    named = lease_identity(ServeConfig(kubernetes=True, lease="east/gear", identity="one"))
    assert (named.namespace, named.lease, named.identity) == ("east", "gear", "one")


def test_feed_before_start_has_no_peers() -> None:
    feed = ClusterFeed(ServeConfig(kubernetes=True))
    assert feed.remote_proxies({}) is NO_REMOTE_PROXIES
    assert feed.lost_s() == {}
    samples = {
        (sample.name, *sample.labels.values()): sample.value for one in feed.families() for sample in one.samples
    }
    assert samples["switchgear_source_stale_seconds", "pods"] == 0
    assert samples["switchgear_lease_held",] == 0
    assert len(samples) == 7


def test_peers_release_is_passed_to_the_reconciler() -> None:
    feed = ClusterFeed(ServeConfig(kubernetes=True))
    released: list[set[str]] = []
    context: Any = SimpleNamespace(
        reconciler=SimpleNamespace(release_with_peers=released.append, request_round=lambda: None)
    )
    feed._peers_changed(context)
    registry: Any = SimpleNamespace(
        peer_statuses=lambda: {"one": ReplicaStatus(released="d1"), "two": ReplicaStatus()}
    )
    feed._replicas = registry
    feed._peers_changed(context)
    assert released == [{"d1"}]


def test_no_write_status_replica_is_not_a_candidate() -> None:
    feed = ClusterFeed(ServeConfig(kubernetes=True, write_status=False))
    assert "switchgear_lease_held" not in {one.name for one in feed.families()}


def test_source_events_name_the_resources_without_contact() -> None:
    lost = cluster_feed._contact(frozenset(), {"pods": 4.0, "nodes": 3.0})
    assert (lost.before, lost.after, lost.alarm) == ("connected", "lost: nodes, pods", True)
    back = cluster_feed._contact(frozenset({"pods"}), {})
    assert (back.before, back.after, back.alarm) == ("lost: pods", "connected", False)
