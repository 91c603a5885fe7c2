"""Proxies that come and go one by one are the same as all of them at once."""

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from xds_server.decide.pool_inputs import proxy_kinds
from xds_server.model.host_crowds import MIN_NODES_OF_HOST, HostCrowds, NodeHost
from xds_server.model.pool_traffic import Proxy
from xds_server.model.view import View
from xds_server.publish.connected_nodes import ConnectedNodes
from xds_server.reconcile.proxy_index import ProxyIndex

VIEWS = (
    View(zone="a"),
    View(zone="b", region="west", role="sidecar"),
    View(zone="b", role="sidecar", pools=frozenset({"p"}), cuts=True),
)
HOSTS = (NodeHost("one", False), NodeHost("two", False), NodeHost("three", True))
nodes = st.integers(0, 60).map(str)
moves = st.lists(
    st.one_of(
        st.tuples(nodes, st.sampled_from(VIEWS), st.sampled_from(HOSTS)),
        st.tuples(nodes, st.none(), st.none()),
    ),
    max_size=120,
)


def crowding(hosts: Mapping[str, NodeHost]) -> dict[str, str]:
    """Node ids that take no part, from all of them; ``hosts`` in order of connection."""
    by_host: dict[NodeHost, list[str]] = {}
    for node, host in hosts.items():
        by_host.setdefault(host, []).append(node)
    most = max(MIN_NODES_OF_HOST, len(by_host) - 1)
    if len(by_host) == 1:
        return {}
    return {node: host.host for host, some in by_host.items() if not host.proven for node in some[most:]}


@given(moves, st.integers(1, 30))
def test_what_is_kept_as_proxies_come_and_go_equals_what_all_of_them_give(
    drawn: list[tuple[str, View | None, NodeHost | None]], each: int
) -> None:
    connected, index = ConnectedNodes(), ProxyIndex()
    views: dict[str, View] = {}
    hosts: dict[str, NodeHost] = {}
    nowhere: dict[str, Proxy] = {}
    away = {"far": Proxy(node="far", zone="c", role="gateway")}
    for number, (node, view, host) in enumerate(drawn):
        if view is None or host is None:
            connected.remove(node)
            views.pop(node, None)
            hosts.pop(node, None)
        else:
            connected.put(node, view, host)
            views[node] = view
            if hosts.get(node) != host:
                hosts.pop(node, None)
                hosts[node] = host
        if number % each:
            continue
        assert connected.views == views
        crowd = crowding(hosts)
        assert connected.crowding == crowd
        assert connected.crowding is connected.crowding
        assert connected.views is connected.views
        sharing = {one: view for one, view in views.items() if one not in crowd}
        assert connected.sharing_by_view == Counter(sharing.values())
        elsewhere = away if number % 2 else nowhere
        proxies, kinds = index.proxies(connected.views, connected.crowding, elsewhere)
        assert proxies == {
            **elsewhere,
            **{
                one: Proxy(
                    node=one,
                    zone=view.zone,
                    role=view.role,
                    cuts=view.cuts,
                    pools=view.pools,
                    region=view.region,
                )
                for one, view in sharing.items()
            },
        }
        assert kinds == proxy_kinds(proxies)


def test_gateways_stay_the_same_object_while_sidecars_come_and_go() -> None:
    index, gateway, sidecar = ProxyIndex(), VIEWS[0], VIEWS[1]
    nowhere: dict[str, Proxy] = {}
    _, before = index.proxies({"g": gateway}, (), nowhere)
    _, after = index.proxies({"g": gateway, "s": sidecar}, (), nowhere)
    assert after.gateways is before.gateways
    _, more = index.proxies({"g": gateway, "s": sidecar, "h": gateway}, (), nowhere)
    assert list(more.gateways) == ["g", "h"]


def test_a_node_that_moves_to_another_host_counts_there() -> None:
    crowds = HostCrowds()
    for number in range(MIN_NODES_OF_HOST + 2):
        crowds.put(str(number), HOSTS[0])
    assert not crowds.crowding(), "the only host"
    crowds.put("0", HOSTS[1])
    assert set(crowds.crowding()) == {str(MIN_NODES_OF_HOST + 1)}
