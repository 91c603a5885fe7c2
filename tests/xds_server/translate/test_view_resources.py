"""Resources of a view, their order, and the effect of changes by kind of resource."""

import pytest

from engine.report import Verdict
from xds_server.decide.decisions import Health
from xds_server.model.fleet import declared
from xds_server.model.memo import Memo
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME
from xds_server.model.view import View
from xds_server.reconcile.assembler import assemble
from xds_server.translate.view_resources import translate


def pool(name, *ports, zone="a"):
    endpoints = ", ".join(f"{{address: 10.0.0.1, port: {port}, name: e{port}, zone: {zone}}}" for port in ports)
    return f"kind: EnginePool\nmetadata: {{name: {name}}}\nspec: {{model: {name}, endpoints: [{endpoints}]}}"


def route(name, pool_name, more="", port=8080):
    return f"""kind: ModelRoute
metadata: {{name: {name}}}
spec: {{listener: {{port: {port}}}, pools: [{{pool: {pool_name}}}]{more}}}"""


def resilience(name, spec):
    return f"kind: ResiliencePolicy\nmetadata: {{name: {name}}}\nspec: {spec}"


THREE = (
    pool("big", 1, 2),
    pool("small", 3),
    pool("lone", 4),
    route("r", "big", ", fallbacks: [small], match: {model: big}"),
    route("s", "lone", port=8081),
)


@pytest.fixture
def versions(policies, decided):
    """Versions by type and name of the compiled documents."""

    def made(*documents, view=None, **decisions):
        policy_set = policies(*documents)
        fleet = declared(policy_set)
        snapshot = assemble(translate(policy_set, fleet, decided(fleet, **decisions), view or View()))
        return {
            url: {name: one.version.partition(".")[0] for name, one in snapshot.of(url).items()}
            for url in (CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME)
        }

    return made


def changed(before, after):
    return {url for url in before if before[url] != after[url]}


def test_resource_order_of_a_snapshot_is_fixed(policies, decided):
    policy_set = policies(*THREE)
    fleet = declared(policy_set)
    items = translate(policy_set, fleet, decided(fleet), View())
    assert [(item.type_url.rpartition(".")[2], item.name) for item in items] == [
        ("Runtime", "switchgear"),
        ("Cluster", "big"),
        ("Cluster", "lone"),
        ("Cluster", "small"),
        ("ClusterLoadAssignment", "big"),
        ("ClusterLoadAssignment", "lone"),
        ("ClusterLoadAssignment", "small"),
        ("Listener", "port-8080"),
        ("Listener", "port-8081"),
        ("RouteConfiguration", "port-8080"),
        ("RouteConfiguration", "port-8081"),
    ]


def test_view_of_some_pools_gets_their_routes(policies, decided):
    policy_set = policies(*THREE)
    fleet = declared(policy_set)
    items = translate(policy_set, fleet, decided(fleet), View(pools=frozenset({"big"})))
    named = {(item.type_url, item.name) for item in items}
    assert {name for url, name in named if url == CLUSTER} == {"big", "small"}
    assert {name for url, name in named if url == LISTENER} == {"port-8080"}


def test_telemetry_never_changes_cds_lds_or_rds(versions):
    before = versions(*THREE)
    assert changed(before, versions(*THREE, out={"big/e1": Health.UNHEALTHY})) == {ENDPOINT}
    assert changed(before, versions(*THREE, out={"big/e1": Health.UNHEALTHY}, verdict=Verdict.DEAD)) == {ENDPOINT}
    assert changed(before, versions(*THREE, zone_weights={("big", ""): {"a": 7}})) == {ENDPOINT}
    assert changed(before, versions(*THREE, ceiling=3)) == {RUNTIME}
    gone = {"big/e1": Health.UNHEALTHY, "big/e2": Health.UNHEALTHY}
    assert changed(before, versions(*THREE, out=gone)) == {ENDPOINT, RUNTIME}  # the fallback takes over


def test_adding_an_engine_changes_eds_only(versions):
    before = versions(*THREE)
    assert changed(before, versions(pool("big", 1, 2, 9), *THREE[1:])) == {ENDPOINT}


@pytest.mark.parametrize(
    "spec",
    [
        "{retries: {attempts: 1}}",
        "{timeouts: {streaming: {betweenTokens: 5s}}}",
    ],
)
def test_request_settings_are_in_the_routes(versions, spec):
    before = versions(*THREE)
    assert changed(before, versions(*THREE, resilience("default", spec))) == {ROUTE}


@pytest.mark.parametrize("spec", ["{limits: {maxWait: 9s}}", "{retryBudget: {percent: 5}}"])
def test_circuit_breaker_limits_are_in_rtds_not_in_cds(versions, spec):
    assert not changed(versions(*THREE), versions(*THREE, resilience("default", spec)))  # decisions carry them


@pytest.mark.parametrize(
    "edited",
    [
        route("r", "big", ", match: {model: big}"),
        route("r", "big", ", fallbacks: [small], match: {model: big, stream: true}"),
        route("r", "big", ", fallbacks: [small], match: {pathPrefix: /v1, headers: [{name: a, exact: b}]}"),
        route("r", "big", ", fallbacks: [small], match: {model: big}, priority: batch, maxBodyBytes: 5000"),
    ],
)
def test_route_edits_change_no_listener(versions, edited):
    after = versions(*THREE[:3], edited, THREE[4])
    assert not changed(versions(*THREE), after) & {LISTENER, CLUSTER, ENDPOINT}


@pytest.mark.parametrize(("address", "both"), [("::", True), ("fd00::7", False), ("0.0.0.0", False)])
def test_ipv6_any_address_accepts_ipv4(policies, decided, address, both):
    policy_set = policies(pool("big", 1), route("r", "big", port=f"8080, address: '{address}'"))
    fleet = declared(policy_set)
    (made,) = [one for one in translate(policy_set, fleet, decided(fleet), View()) if one.type_url == LISTENER]
    assert made.message.address.socket_address.ipv4_compat is both


def test_unchanged_items_are_the_same_objects(policies, decided):
    policy_set = policies(*THREE)
    fleet = declared(policy_set)
    memo = Memo()
    before = translate(policy_set, fleet, decided(fleet), View(), memo)
    memo.sweep()
    out = decided(fleet, out={"big/e1": Health.UNHEALTHY})
    after = translate(policies(*THREE), fleet, out, View(), memo)
    different = {item.name for item, now in zip(before, after, strict=True) if item is not now}
    assert different == {"big"}
    spared = [item for item in after if item.type_url == ENDPOINT and item.name == "big"]
    (was,) = [item for item in before if item.type_url == ENDPOINT and item.name == "big"]
    kept = set(map(id, was.message.localities[0].endpoints)) & set(
        map(id, spared[0].message.localities[0].endpoints)
    )
    assert len(kept) == 1  # the unchanged engine


def test_listeners_share_their_connection_manager(policies, decided):
    policy_set = policies(*THREE)
    fleet, memo = declared(policy_set), Memo()
    managers = [
        next(
            item for item in translate(policy_set, fleet, decided(fleet), view, memo) if item.type_url == LISTENER
        )
        .message.filter_chains[0]
        .filters[0]
        .typed_config
        for view in (View(listen_address="10.0.0.1"), View(listen_address="10.0.0.2"))
    ]
    assert managers[0] is managers[1]


def test_memo_does_not_change_results(policies, decided):
    memo = Memo()
    for documents in (THREE, THREE[:3] + THREE[4:], THREE):
        policy_set = policies(*documents)
        fleet = declared(policy_set)
        with_memo = assemble(translate(policy_set, fleet, decided(fleet), View(zone="a"), memo))
        without = assemble(translate(policy_set, fleet, decided(fleet), View(zone="a")))
        assert with_memo == without
        memo.sweep()


def test_grpc_client_gets_api_listeners_by_pool(policies, decided, by_name):
    policy_set = policies(*THREE)
    fleet = declared(policy_set)
    items = translate(policy_set, fleet, decided(fleet), View(role="grpc", zone="a"))
    assert set(by_name(items, LISTENER)) == {"big", "small", "lone"}
    assert not by_name(items, RUNTIME)
    assert not by_name(items, ROUTE)
    cluster = by_name(items, CLUSTER)["big"].message
    assert cluster.outlier_detection is None
    assert cluster.least_request_lb_config is None


def test_resources_name_their_origins(policies, decided, by_name):
    policy_set = policies(*THREE, resilience("default", "{}"), resilience("mine", "{pools: [big]}"))
    fleet = declared(policy_set)
    items = translate(policy_set, fleet, decided(fleet), View())
    lines = [origin.rsplit(":", 2)[1] for origin in by_name(items, CLUSTER)["big"].origins]
    documents = [
        str(policy_set.origin(*one)).rsplit(":", 2)[1]
        for one in (("ResiliencePolicy", "mine"), ("ResiliencePolicy", "default"), ("EnginePool", "big"))
    ]
    assert lines == documents
    assert by_name(items, ROUTE)["port-8080"].origins == (str(policy_set.origin("ModelRoute", "r")),)


def test_envoys_without_prompt_keys_get_no_filter_that_they_refuse(policies, decided):
    read = policies(pool("p", 1, 2, 3), route("r", "p", ", affinity: {prefix: {}}"))
    fleet = declared(read)
    memo = Memo()

    def listener(view):
        (one,) = (one for one in translate(read, fleet, decided(fleet), view, memo) if one.type_url == LISTENER)
        return str(one.message)

    old, new = View(no_prompt_keys=True), View()
    assert "set_filter_state" in listener(new)
    assert "set_filter_state" not in listener(old)
    assert listener(old) == str(listener_without_affinity(policies, decided))


def listener_without_affinity(policies, decided):
    read = policies(pool("p", 1, 2, 3), route("r", "p"))
    fleet = declared(read)
    items = translate(read, fleet, decided(fleet), View())
    (one,) = (one for one in items if one.type_url == LISTENER)
    return one.message
