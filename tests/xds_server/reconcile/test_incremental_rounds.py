"""Rounds that look at changed pools only: in any history, they give what a pipeline without a cache gives."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.report import EngineReport, Verdict
from policies.load import LoadCache, load_contents
from policies.model import PolicySet
from policies.route import PriorityClass
from xds_server.decide.decision_memory import NO_MEMORY, DecisionMemory
from xds_server.model.fleet import EngineId, Fleet, declared, redeclared, with_report, with_traffic
from xds_server.model.order import Order, OrderAction
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic, ProxyTraffic
from xds_server.model.type_urls import ENDPOINT, LISTENER, RUNTIME
from xds_server.model.view import GRPC_ROLE, View
from xds_server.reconcile.pipeline import BuildInputs, BuildResult, Pipeline

POOLS = ("a", "b", "c", "lone")
ENGINES = 3
VIEWS = (
    View(zone="z1", cuts=True),
    View(zone="z2", region="west", role="sidecar"),
    View(zone="z1", pools=frozenset({"a"}), no_prompt_keys=True),
    View(zone="z1", role=GRPC_ROLE),
)
NODES = {f"n{number}": view for number, view in enumerate(VIEWS)}
CROWD = {f"s{number}": View(zone=f"z{number % 3}", role="sidecar", cuts=True) for number in range(40)}
"""Sidecars without traffic: no pool is decided again because of one."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What an edit may change: engines left out, slots, the revision of a pool, fallbacks."""

    without: frozenset[tuple[str, int]] = frozenset()
    slots: int = 8
    revision: str = "v1"
    fallbacks: bool = True
    regions: bool = False

    def text(self) -> bytes:
        documents = [self._pool(name) for name in POOLS]
        documents += [self._route("main", ("a",), ("b", "c")), self._route("split", ("b", "c"), ("a",))]
        documents.append(self._route("lone", ("lone",), ()))
        return "---\n".join(documents).encode()

    def _pool(self, name: str) -> str:
        revision = self.revision if name == "b" else "v1"
        endpoints = "".join(
            f"    - {{address: 10.0.{POOLS.index(name)}.{one + 1}, port: 8000, name: e{one},"
            f" zone: z{one % 2 + 1}, region: {('east', 'west')[one % 2]}, revision: {revision}}}\n"
            for one in range(ENGINES)
            if (name, one) not in self.without
        )
        return (
            "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\n"
            f"metadata: {{name: {name}}}\nspec:\n  model: m\n  slotsPerEngine: {self.slots}\n"
            f"  endpoints:\n{endpoints}"
        )

    def _route(self, name: str, pools: tuple[str, ...], fallbacks: tuple[str, ...]) -> str:
        shares = ", ".join(f"{{pool: {pool}, weight: {number + 1}}}" for number, pool in enumerate(pools))
        more = f"  fallbacks: [{', '.join(fallbacks)}]\n" if fallbacks and self.fallbacks else ""
        more += "  allowedRegions: [east]\n" if self.regions and name == "split" else ""
        return (
            "apiVersion: switchgear.dev/v1alpha1\nkind: ModelRoute\n"
            f"metadata: {{name: {name}}}\nspec:\n  listener: {{port: 10000}}\n"
            f"  match: {{pathPrefix: /{name}}}\n  pools: [{shares}]\n{more}"
        )


@dataclass
class History:
    """One fleet through time, as a server sees it."""

    cache: LoadCache = field(default_factory=LoadCache)
    declared: Declared = field(default_factory=Declared)
    policies: PolicySet | None = None
    fleet: Fleet | None = None
    memory: DecisionMemory = NO_MEMORY
    nodes: Mapping[str, View] = field(default_factory=dict)
    orders: Mapping[EngineId, Order] = field(default_factory=dict)
    traffic: dict[str, PoolTraffic] = field(default_factory=dict)
    now_s: float = 1_000.0

    def edit(self, **changed: object) -> None:
        self.declared = replace(self.declared, **changed)  # type: ignore[arg-type]
        before = self.policies
        self.policies = load_contents({Path("all.yaml"): self.declared.text()}, self.cache)
        self.fleet = (
            declared(self.policies) if self.fleet is None else redeclared(self.policies, self.fleet, before)
        )

    def report(self, one: tuple[str, int], verdict: Verdict) -> None:
        assert self.fleet is not None
        report = EngineReport(
            pool=one[0],
            engine=f"e{one[1]}",
            verdict=verdict,
            evidence="drawn",
            observed_at_s=self.now_s,
            boot_id="one",
            sequence=int(self.now_s * 10),
        )
        for _ in range(2):  # one bad look ejects no engine
            self.fleet = with_report(self.fleet, report, self.now_s)

    def call(self, one: tuple[str, int], *, failing: bool) -> None:
        assert self.fleet is not None
        calls = EngineTraffic(
            window_calls=25,
            window_failures=25 if failing else 0,
            failures_in_a_row=25 if failing else 0,
            succeeded=100,
            failed=25 if failing else 0,
            done_per_s=5.0,
            heard_at_s=self.now_s,
        )
        demand = ProxyTraffic(
            arrivals_per_s={PriorityClass.INTERACTIVE: 50.0},
            shed_per_s={},
            load_at_s=self.now_s,
            heard_at_s=self.now_s,
        )
        self.traffic[one[0]] = PoolTraffic(
            engines={f"e{one[1]}": calls}, proxies={"n0": demand}, heard_at_s=self.now_s
        )
        self.fleet = with_traffic(self.fleet, dict(self.traffic))

    def toggle_engine(self, one: tuple[str, int]) -> None:
        without = self.declared.without ^ {one}
        if all(sum(pool == name for pool, _ in without) < ENGINES for name in POOLS):
            self.edit(without=without)

    def toggle_field(self, name: str) -> None:
        self.edit(**{name: not getattr(self.declared, name)})

    def toggle_proxy(self, node: str) -> None:
        without = {name: view for name, view in self.nodes.items() if name != node}
        self.nodes = {**self.nodes, node: NODES[node]} if node not in self.nodes else without

    def set_crowd(self, count: int) -> None:
        rest = {name: view for name, view in self.nodes.items() if name not in CROWD}
        self.nodes = {**rest, **dict(list(CROWD.items())[:count])}

    def toggle_order(self, one: tuple[str, int], action: OrderAction) -> None:
        key = EngineId(one[0], f"e{one[1]}")
        known = {engine: order for engine, order in self.orders.items() if engine != key}
        if key not in self.orders:
            known[key] = Order(engine=key, action=action, until_s=self.now_s + 100, reason="drawn")
        self.orders = known

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def inputs(self) -> BuildInputs:
        assert self.policies is not None
        assert self.fleet is not None
        return BuildInputs(
            policies=self.policies,
            fleet=self.fleet,
            views=frozenset(self.nodes.values()),
            proxies_by_role=Counter(view.role for view in self.nodes.values()),
            now_s=self.now_s,
            nodes=self.nodes,
            orders=self.orders,
            memory=self.memory,
            access_log_shares={"n1": 0.5} if "n1" in self.nodes else {},
        )


engines = st.tuples(st.sampled_from(POOLS), st.integers(0, ENGINES - 1))
actions = st.sampled_from([OrderAction.EJECT, OrderAction.DRAIN, OrderAction.RESTORE])
steps = st.one_of(
    st.builds(lambda one, verdict: lambda now: now.report(one, verdict), engines, st.sampled_from(list(Verdict))),
    st.builds(lambda one, failing: lambda now: now.call(one, failing=failing), engines, st.booleans()),
    st.builds(lambda one: lambda now: now.toggle_engine(one), engines),
    st.builds(lambda slots: lambda now: now.edit(slots=slots), st.sampled_from([8, 16])),
    st.builds(lambda said: lambda now: now.edit(revision=said), st.sampled_from(["v1", "v1.2", "v2"])),
    st.builds(lambda name: lambda now: now.toggle_field(name), st.sampled_from(["fallbacks", "regions"])),
    st.builds(lambda node: lambda now: now.toggle_proxy(node), st.sampled_from(sorted(NODES))),
    st.builds(lambda count: lambda now: now.set_crowd(count), st.sampled_from([0, 1, 2, 3, 12, 13, 40])),
    st.builds(lambda one, action: lambda now: now.toggle_order(one, action), engines, actions),
    st.builds(lambda seconds: lambda now: now.wait(seconds), st.sampled_from([1.0, 40.0, 400.0])),
)


def shown(built: BuildResult) -> object:
    """Everything that proxies would be sent: names, versions and bytes, in order."""
    return (
        {
            view: [
                (url, name, one.version, one.value)
                for url, of in served.resources.items()
                for name, one in of.items()
            ]
            for view, served in built.snapshots.items()
        },
        {node: [(one.version, one.value) for one in some] for node, some in built.own.items()},
    )


def due(memory: DecisionMemory) -> DecisionMemory:
    """The memory with which every pool is decided again."""
    pools = {name: replace(pool, valid_until_s=-math.inf) for name, pool in memory.pools.items()}
    return replace(memory, pools=pools, places={})


@given(st.lists(steps, min_size=4, max_size=10))
@settings(max_examples=25, deadline=None)
def test_incremental_rounds_equal_rounds_without_a_cache(drawn: list[Callable[[History], None]]) -> None:
    history, pipeline = History(), Pipeline()
    history.edit()
    history.toggle_proxy("n0")
    for step in drawn:
        history.now_s += 0.6
        step(history)
        inputs = history.inputs()
        built = pipeline.build(inputs)
        fresh = Pipeline().build(replace(inputs, memory=due(inputs.memory)))
        assert dict(built.decisions.engines) == dict(fresh.decisions.engines)
        assert built.decisions.leaving == fresh.decisions.leaving
        assert shown(built) == shown(fresh)
        history.memory = built.memory


def test_an_ejection_leaves_all_but_its_pool_as_it_is() -> None:
    history, pipeline = History(), Pipeline()
    history.edit()
    history.toggle_proxy("n0")
    history.toggle_proxy("n1")
    for _ in range(3):
        history.now_s += 100.0
        built = pipeline.build(history.inputs())
        history.memory = built.memory
    history.set_crowd(1)
    arrived = pipeline.build(history.inputs())
    for view, before in built.snapshots.items():
        assert arrived.snapshots[view] is before
    history.now_s += 100.0
    history.toggle_order(("lone", 0), OrderAction.EJECT)
    after = pipeline.build(history.inputs())
    for view, before in built.snapshots.items():
        kept = [url for url, named in after.snapshots[view].resources.items() if named is before.of(url)]
        assert set(after.snapshots[view].resources) - set(kept) == {RUNTIME, ENDPOINT}
        changed = [
            name
            for name, one in after.snapshots[view].of(ENDPOINT).items()
            if one is not before.of(ENDPOINT)[name]
        ]
        assert changed == ["lone"]


def test_views_of_several_zones_share_the_listeners_of_engines() -> None:
    history, pipeline = History(), Pipeline()
    history.edit()
    views = frozenset(View(zone=zone, cuts=True) for zone in ("z1", "z2"))
    built = pipeline.build(replace(history.inputs(), views=views))
    one, other = (built.snapshots[view].of(LISTENER) for view in views)
    assert one is other
