"""Sync lag per type: the longest, for NACK and for no answer."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from tests.monitoring.large_fleet import ACCEPTED, connected, proxy
from xds_server.admin.server_backend import ServerBackend
from xds_server.model.type_urls import ENDPOINT, ROUTE
from xds_server.model.view import ROLES
from xds_server.reconcile.reconciler import Reconciler
from xds_server.xds.messages import Sync


def test_sync_lag_is_the_longest_of_each_xds_type() -> None:
    since = {
        "n1": {ENDPOINT: (Sync.STALE, 60.0), ROUTE: (Sync.SYNCED, 10.0)},
        "n2": {ENDPOINT: (Sync.NACK, 90.0), ROUTE: (Sync.SYNCED, 20.0)},
    }
    states = []
    for node, types in since.items():
        known = proxy(node)
        watches = tuple(
            replace(one, state=types[one.type_url][0], since_s=types[one.type_url][1])
            for one in known.types
            if one.type_url in types
        )
        states.append(replace(known, types=watches))
    reconciler = SimpleNamespace(built=None, fleet=None, serving=None, source_state=ACCEPTED)
    facts = ServerBackend(cast("Reconciler", reconciler), connected(states), clock=lambda: 100.0)
    found = {
        sample.labels["type"]: sample.value
        for family in facts.families()
        if family.name == "switchgear_xds_behind_seconds"
        for sample in family.samples
    }
    assert found == {"EDS": 40.0, "RDS": 0.0}


def test_connection_metrics_are_zero_without_proxies() -> None:
    reconciler = cast("Reconciler", SimpleNamespace(built=None, fleet=None, serving=None, source_state=ACCEPTED))
    counts = []
    for states in ([proxy("n1"), proxy("n2")], []):
        families = {one.name: one.samples for one in ServerBackend(reconciler, connected(states)).families()}
        counts.append({tuple(one.labels.values()): one.value for one in families["switchgear_xds_connections"]})
    assert counts[0]["gateway", "delta"] == 2
    assert set(counts[1]) == {(role, mode) for role in ROLES for mode in ("delta", "sotw")}
    assert set(counts[1].values()) == {0}
