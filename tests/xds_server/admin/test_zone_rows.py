"""Zones with a row: those with engines or callers; the empty zone only if it is used."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from tests.monitoring.large_fleet import NOW_S, policies, proxy
from xds_server.admin.server_backend import ServerBackend
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import declared
from xds_server.publish import Publisher
from xds_server.reconcile.pipeline import BuildInputs, BuildResult
from xds_server.reconcile.reconciler import Reconciler
from xds_server.xds import NodeInfo


@pytest.mark.parametrize(
    ("zones_of_proxies", "shown"), [((), ["z0"]), (("z0",), ["z0"]), (("z0", ""), ["", "z0"])]
)
def test_zone_rows_are_zones_with_engines_or_callers(zones_of_proxies: tuple[str, ...], shown: list[str]) -> None:
    known = policies({"engine": 2, "pool": 1, "zone": 1, "region": 1})
    fleet = declared(known)
    connected = ConnectedProxies(calling_zones=frozenset({"", "z0"}))
    decisions, memory = decide(known, fleet, NO_MEMORY, proxies=connected, now_s=NOW_S)
    inputs = BuildInputs(policies=known, fleet=fleet, views=frozenset(), proxies_by_role={}, now_s=NOW_S)
    built = BuildResult(inputs=inputs, decisions=decisions, memory=memory, snapshots={}, stages_s={})
    states = [
        replace(proxy(f"n{n}"), node=NodeInfo(id=f"n{n}", zone=zone)) for n, zone in enumerate(zones_of_proxies)
    ]
    facts = ServerBackend(
        cast("Reconciler", SimpleNamespace(built=built, fleet=fleet)),
        cast("Publisher", SimpleNamespace(sync_states=lambda: states, desired=lambda _: None)),
        clock=lambda: NOW_S,
    )
    assert [row.zone for row in facts.zones()] == shown
