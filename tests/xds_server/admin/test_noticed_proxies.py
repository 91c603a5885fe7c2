"""Conditions come from proxies that are out of sync or silent; they are the same as from all proxies."""

from types import MappingProxyType, SimpleNamespace
from typing import cast

import pytest

from tests.monitoring.large_fleet import ACCEPTED
from tests.xds_server.publish.resource_fixtures import cluster
from tests.xds_server.publish.test_publisher import Fleet, Proxy
from xds_server.admin.server_backend import ServerBackend
from xds_server.admin.views.context import ViewContext
from xds_server.admin.views.get_tables import proxy_rows, silent_proxies
from xds_server.diagnosis.conditions import BEHIND_S, of_proxies
from xds_server.model.pool_traffic import ProxyTraffic
from xds_server.reconcile.reconciler import Reconciler


@pytest.mark.parametrize("now_s", [BEHIND_S / 2, 2 * BEHIND_S], ids=["just-pushed", "long-ago"])
@pytest.mark.parametrize("proxies", [0, 1, 3])
def test_conditions_of_noticed_proxies_are_those_of_all(proxies: int, now_s: float) -> None:
    fleet = Fleet(cluster("a", "1"))
    for number in range(proxies):
        fleet.join(f"calm-{number}")
    if proxies > 1:
        fleet.join("refuses")
        fleet.publish(cluster("a", "not for refuses"))
        # Never answers.
        Proxy(fleet.publisher, "late").receive()
    reconciler = SimpleNamespace(
        built=None, fleet=None, serving=None, source_state=ACCEPTED, policies=None, orders=None
    )
    backend = ServerBackend(
        cast("Reconciler", reconciler), fleet.publisher, clock=lambda: now_s, wall=lambda: now_s
    )
    expected = {(one.code, one.subject, one.sentence) for one in of_proxies(backend.proxies(), now_s)}
    found = {(one.code, one.subject, one.sentence) for one in backend.conditions()}
    codes = {"SG204", "SG205", "SG206", "SG274", "SG224"}
    assert {one for one in found if one[0] in codes} == expected
    late = "SG274" if now_s < BEHIND_S else "SG205"
    assert {code for code, _, _ in expected} == {0: {"SG206"}, 1: set(), 3: {"SG204", late}}[proxies]


def test_silent_proxies_are_those_without_telemetry() -> None:
    pools = {
        "p": {"told": ProxyTraffic(heard_at_s=90.0), "silent": ProxyTraffic(heard_at_s=0.0)},
        "q": {"told": ProxyTraffic(heard_at_s=0.0, load_at_s=80.0), "half": ProxyTraffic(heard_at_s=0.0)},
    }
    traffic = {name: SimpleNamespace(proxies=proxies) for name, proxies in pools.items()}
    scene = cast(
        "ViewContext",
        SimpleNamespace(
            fleet=SimpleNamespace(traffic=traffic),
            decisions=SimpleNamespace(pools=MappingProxyType({})),
            now=SimpleNamespace(s=100.0),
        ),
    )
    assert set(silent_proxies(scene)) == {"silent", "half"}
    for node in ("told", "silent", "half"):
        ages = [row.telemetry_age_s for row in proxy_rows(node, scene)]
        assert (None in ages) == (node != "told")
