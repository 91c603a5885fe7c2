"""Proxies that divide the quotas of tenants."""

from pathlib import Path

from policies.load import load_contents
from policies.model import PolicySet
from tests.policies.test_external_services import POOL, route
from tests.policies.test_tenants import TRUSTED
from xds_server.decide.admission.quota_proxies import quota_proxies
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.pool_traffic import Proxy

SPARE = "---" + POOL.replace("name: p}", "name: spare}")


def policies(*documents: str) -> PolicySet:
    return load_contents({Path("p.yaml"): "".join((POOL, *documents)).encode()})


def proxy(node: str, role: str = "gateway", pools: frozenset[str] = frozenset()) -> Proxy:
    return Proxy(node=node, zone="", role=role, cuts=False, pools=pools, region="")


def connected(*proxies: Proxy, **by_role: int) -> ConnectedProxies:
    return ConnectedProxies(by_node={one.node: one for one in proxies}, by_role=by_role)


def test_ports_without_tenants_are_absent() -> None:
    assert quota_proxies(policies(route("a", "address: 0.0.0.0")), connected(proxy("a"), gateway=1)) == {}


def test_only_envoys_that_serve_the_port_divide_it() -> None:
    every = policies(SPARE, route("a", TRUSTED))
    shared = connected(
        proxy("all"),
        proxy("served", "sidecar", frozenset({"p"})),
        proxy("elsewhere", "sidecar", frozenset({"spare"})),
        proxy("client", "grpc"),
        gateway=1,
        sidecar=2,
        grpc=1,
    )
    assert quota_proxies(every, shared) == {8080: 2}


def test_proxy_that_just_left_keeps_its_part() -> None:
    assert quota_proxies(policies(route("a", TRUSTED)), connected(proxy("a"), gateway=3)) == {8080: 3}


def test_without_proxies_one_would_get_all() -> None:
    assert quota_proxies(policies(route("a", TRUSTED)), connected()) == {8080: 1}
