"""Two replicas with half of the proxies each decide like one with all; moves change nothing."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.report import EngineReport, ReportSource, Verdict
from policies.load import load_contents
from policies.model import PolicySet
from policies.route import PriorityClass
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import Health
from xds_server.k8s.lease import LeaderElectionRecord
from xds_server.k8s.replica_peers import LIVE_S, ReplicaPeers, remote_proxies, updated_peers
from xds_server.k8s.replica_status import (
    ReplicaStatus,
    proxy_demands,
    proxy_groups,
    replica_status,
    status_annotations,
)
from xds_server.model.fleet import EngineId, Fleet, declared, with_report, with_traffic
from xds_server.model.pool_traffic import PoolTraffic, ProxyTraffic
from xds_server.model.remote_proxies import RemoteProxies
from xds_server.model.snapshot import OwnResources, Snapshot
from xds_server.model.type_urls import RUNTIME
from xds_server.model.view import View
from xds_server.reconcile.pipeline import REFERENCE_VIEW, BuildInputs, BuildResult, Pipeline
from xds_server.reconcile.proxy_counts import HOLD_S, ProxyCounts

SLOTS = 40
POLICIES = f"""
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: p}}
spec:
  model: m
  slotsPerEngine: {SLOTS}
  endpoints:
    - {{name: e1, address: 127.0.0.1, port: 8001, zone: a, agentPort: 9001}}
    - {{name: e2, address: 127.0.0.1, port: 8002, zone: b, agentPort: 9002}}
    - {{name: e3, address: 127.0.0.1, port: 8003, zone: b, agentPort: 9003}}
    - {{name: e4, address: 127.0.0.1, port: 8004, zone: c, agentPort: 9004}}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: r}}
spec: {{listener: {{port: 10000}}, pools: [{{pool: p}}]}}
"""
A, B = View(zone="a", role="gateway"), View(zone="b", role="gateway")
VIEWS = frozenset({A, B, REFERENCE_VIEW})
STEP_S = 0.5


def policies() -> PolicySet:
    return load_contents({Path("p.yaml"): POLICIES.encode()})


class Served:
    """The proxies of one replica."""

    def __init__(self) -> None:
        self.connected: Mapping[str, View] = {}

    def views(self) -> frozenset[View]:
        return frozenset(self.connected.values())

    def nodes(self) -> Mapping[str, View]:
        return self.connected

    def crowding(self) -> frozenset[str]:
        return frozenset()

    def proxies_by_role(self) -> Mapping[str, int]:
        return {"gateway": len(self.connected)} if self.connected else {}

    def proxies_by_zone(self) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for view in self.connected.values():
            counts[view.zone] = counts.get(view.zone, 0) + 1
        return counts

    def publish(self, snapshots: Mapping[View, Snapshot], own: Mapping[str, OwnResources]) -> None:
        raise AssertionError(f"counting proxies publishes nothing, here {snapshots} and {own}")


class Replica:
    """One replica without clocks and sockets."""

    def __init__(self, policy_set: PolicySet) -> None:
        self.policies = policy_set
        self.fleet: Fleet = declared(policy_set)
        self.served = Served()
        self.peers: ReplicaPeers = {}
        self.roll = ProxyCounts(self.served, self)
        self.pipeline = Pipeline()
        self.built: BuildResult | None = None
        self.now_s = 0.0
        self.renewals = 0
        self._known: tuple[ReplicaPeers, object, RemoteProxies] | None = None

    def remote_proxies(self, here: Mapping[str, object]) -> RemoteProxies:
        return remote_proxies(self.peers, here, self.now_s)

    def says(self, rates: Mapping[str, float]) -> tuple[LeaderElectionRecord, ReplicaStatus]:
        """Its Lease as read by the others."""
        self.renewals += 1
        nodes = self.served.nodes()
        traffic = {"p": self._traffic(rates)} if rates else {}
        own = ReplicaStatus(groups=proxy_groups(nodes, {}), asks=proxy_demands(nodes, traffic, self.now_s))
        read = replica_status({"metadata": {"annotations": dict(status_annotations(own))}})
        assert read is not None
        version = str(self.renewals)
        return LeaderElectionRecord(
            holder="", duration_s=10, acquired="", renewed="", transitions=0, version=version
        ), read

    def round(self, rates: Mapping[str, float]) -> BuildResult:
        local = {"p": self._traffic(rates)} if rates else {}
        self.roll.update(self.now_s)
        self.fleet = with_traffic(self.fleet, self.roll.traffic(local))
        self.built = self.pipeline.build(
            BuildInputs(
                policies=self.policies,
                fleet=self.fleet,
                memory=self.built.memory if self.built else NO_MEMORY,
                views=VIEWS,
                proxies_by_role=self.roll.by_role.counts(),
                calling_zones=frozenset(self.roll.by_zone.counts()),
                nodes=self.served.nodes(),
                remote_proxies=self.roll.remote_proxies().proxies,
                now_s=self.now_s,
            )
        )
        return self.built

    def _traffic(self, rates: Mapping[str, float]) -> PoolTraffic:
        return PoolTraffic(
            proxies={
                node: ProxyTraffic(arrivals_per_s={PriorityClass.INTERACTIVE: rate}, heard_at_s=self.now_s)
                for node, rate in rates.items()
                if node in self.served.connected
            },
            heard_at_s=self.now_s,
        )


class Stage:
    """Replicas that share the proxies, and the proxies' demand."""

    def __init__(self, count: int) -> None:
        policy_set = policies()
        self.replicas = [Replica(policy_set) for _ in range(count)]
        self.place: dict[str, int] = {}
        self.rates: dict[str, float] = {}
        self.now_s = 100.0
        self.alive = set(range(count))

    def connect(self, node: str, to: int) -> None:
        self.place[node] = to
        self._connected()

    def _connected(self) -> None:
        for number, replica in enumerate(self.replicas):
            replica.served.connected = {
                node: A if int(node[1:]) % 2 else B
                for node, at in sorted(self.place.items())
                if at == number and number in self.alive
            }

    def kill(self, number: int) -> None:
        self.alive.discard(number)
        self._connected()

    def step(self, *, times: int = 1, meet: bool = True) -> None:
        for _ in range(times):
            self.now_s += STEP_S
            for replica in self.replicas:
                replica.now_s = self.now_s
            policy_set = {
                f"replica-{number}": self.replicas[number].says(self.rates) for number in sorted(self.alive)
            }
            for number in sorted(self.alive):
                replica = self.replicas[number]
                if meet:
                    others = {name: one for name, one in policy_set.items() if name != f"replica-{number}"}
                    left = {
                        name: (peer.record, peer.presence)
                        for name, peer in replica.peers.items()
                        if name not in policy_set
                    }
                    replica.peers = updated_peers(replica.peers, {**left, **others}, self.now_s)
                replica.round(self.rates)

    def built(self, number: int) -> BuildResult:
        built = self.replicas[number].built
        assert built is not None
        return built

    def parts(self) -> dict[str, int]:
        """Admission limit of each connected proxy, by its replica."""
        found = {}
        for node, at in self.place.items():
            if at in self.alive:
                admission = self.built(at).decisions.pools["p"].admission
                assert admission is not None
                found[node] = admission.by_proxy[node].interactive
        return found

    def total(self, number: int = 0) -> int:
        admission = self.built(number).decisions.pools["p"].admission
        assert admission is not None
        return admission.total


def staged(count: int, proxies: int = 4) -> Stage:
    stage = Stage(count)
    for number in range(proxies):
        stage.connect(f"g{number}", number // (proxies // count))
    return stage


def bytes_of(built: BuildResult) -> dict[View, dict[tuple[str, str], bytes]]:
    return {
        view: {(url, name): one.value for url, named in made.resources.items() for name, one in named.items()}
        for view, made in built.snapshots.items()
    }


def test_two_replicas_serve_the_bytes_of_one() -> None:
    one, two = staged(1), staged(2)
    one.step(times=4)
    two.step(times=4)
    assert bytes_of(two.built(0)) == bytes_of(two.built(1)) == bytes_of(one.built(0))
    owns = {**two.built(0).own, **two.built(1).own}
    assert {node: made[0].version for node, made in owns.items()} == {
        node: made[0].version for node, made in one.built(0).own.items()
    }
    assert two.parts() == one.parts()


@pytest.mark.parametrize(
    "rates",
    [
        {"g0": 4.0, "g1": 2.0, "g2": 1.0, "g3": 1.0},
        {"g0": 40.0, "g1": 1.0, "g2": 0.1, "g3": 0.0},
        {"g0": 30.0, "g1": 30.0, "g2": 30.0, "g3": 30.0},
        {"g2": 5.0, "g3": 500.0},
    ],
)
def test_max_requests_of_two_replicas_add_up_to_the_total(rates: dict[str, float]) -> None:
    one, two = staged(1), staged(2)
    one.rates = two.rates = rates
    one.step(times=40)
    two.step(times=40)
    assert two.total(0) == two.total(1) == one.total()
    whole = two.total()
    assert sum(two.parts().values()) >= whole * 0.9
    # A standby gateway may have its part twice, as with one replica.
    assert sum(two.parts().values()) <= max(whole, sum(one.parts().values())) * 1.05 + len(two.place)
    for node, part in one.parts().items():
        assert abs(two.parts()[node] - part) <= max(3, 0.1 * part), (node, one.parts(), two.parts())


def test_isolated_replicas_each_use_the_whole_limit() -> None:
    """The problem that sharing solves."""
    stage = staged(2)
    stage.rates = {f"g{number}": 20.0 for number in range(4)}
    stage.step(times=40, meet=False)
    assert sum(stage.parts().values()) > 1.9 * stage.total()


def test_envoy_moving_between_replicas_gets_no_push() -> None:
    stage = staged(2)
    stage.step(times=4)
    had = bytes_of(stage.built(0))[B]
    own = stage.built(0).own["g0"][0].version
    others = {node: made[0].version for node, made in {**stage.built(0).own, **stage.built(1).own}.items()}
    stage.connect("g0", 1)
    for _ in range(int(HOLD_S / STEP_S) + 4):
        stage.step()
        assert bytes_of(stage.built(1))[B] == had
        assert stage.built(1).own["g0"][0].version == own
        now = {**stage.built(0).own, **stage.built(1).own}
        assert {node: made[0].version for node, made in now.items()} == others


def test_moving_envoy_is_not_counted_twice() -> None:
    stage = staged(2)
    stage.step(times=4)
    replica = stage.replicas[1]
    counted = replica.roll.by_role.counts()
    replica.roll.update(stage.now_s, arriving=B)  # first snapshot requested, not connected yet
    assert replica.roll.by_role.counts() == counted
    # Without a similar proxy elsewhere it is new.
    replica.roll.update(stage.now_s, arriving=View(zone="z", role="sidecar"))
    assert replica.roll.by_role.counts() == {**counted, "sidecar": 1}


def test_proxies_of_a_dead_replica_are_counted_once() -> None:
    stage = staged(2)
    stage.rates = {f"g{number}": 20.0 for number in range(4)}
    stage.step(times=40)
    parts = stage.parts()
    stage.kill(0)
    # Until they return their share is reserved.
    stage.step(times=4)
    assert stage.parts() == {node: parts[node] for node in ("g2", "g3")}
    for node in ("g0", "g1"):
        stage.connect(node, 1)
    stage.step(times=6)
    # The whole limit is in use again long before the dead replica's Lease expires.
    assert abs(sum(stage.parts().values()) - sum(parts.values())) <= 0.05 * sum(parts.values()) + 4
    assert stage.replicas[1].roll.by_role.counts() == {"gateway": 4}


def test_dead_replica_keeps_its_share_until_its_lease_expires() -> None:
    stage = staged(2)
    stage.step(times=4)
    even = stage.parts()["g2"]
    stage.kill(0)
    stage.step(times=int((LIVE_S + HOLD_S - 5) / STEP_S))
    assert stage.parts()["g2"] == even
    stage.step(times=int(10 / STEP_S))
    assert stage.parts()["g2"] == pytest.approx(2 * even, abs=1)


def test_zone_split_is_equal_on_all_replicas() -> None:
    stage = staged(2)
    stage.rates = {"g0": 1.0, "g1": 90.0, "g2": 1.0, "g3": 90.0}
    stage.step(times=80)
    first, second = (stage.built(number).decisions.zone_weights for number in (0, 1))
    assert first.keys() == second.keys()
    for key, weights in first.items():
        for zone, weight in weights.items():
            assert abs(second[key][zone] - weight) <= 40, key


# -- a split view ------------------------------------------------------------------------------------------


def report(engine: str, verdict: Verdict, at_s: float, source: ReportSource) -> EngineReport:
    return EngineReport(
        pool="p", engine=engine, verdict=verdict, evidence="seen", observed_at_s=at_s, source=source
    )


def test_replicas_with_different_views_do_not_flap() -> None:
    """One replica hears all agents; the other has lost two and probes those engines itself.

    An agent reports a hang at once, a probe finds it later. In between one replica sends requests there and one
    does not: both are right by their data, and neither follows the other.
    """
    stage = staged(2)
    sees, blind = stage.replicas
    history: dict[int, list[Health]] = {0: [], 1: []}
    key = EngineId("p", "e1")
    hung_at, probed_at = 20, 40
    for look in range(80):
        now_s = stage.now_s + STEP_S
        for name in ("e1", "e2", "e3", "e4"):
            hung = name == "e1" and look >= hung_at
            told = report(name, Verdict.HUNG if hung else Verdict.READY, now_s, ReportSource.AGENT)
            sees.fleet = with_report(sees.fleet, told, now_s)
            if name in ("e3", "e4"):
                blind.fleet = with_report(blind.fleet, told, now_s)
                continue
            found = name == "e1" and look >= probed_at
            probed = report(name, Verdict.HUNG if found else Verdict.READY, now_s, ReportSource.PROBE)
            blind.fleet = with_report(blind.fleet, probed, now_s)
        stage.step()
        for number in (0, 1):
            history[number].append(stage.built(number).decisions.engines[key].health)
        if look == probed_at - 1:
            assert bytes_of(stage.built(0)) != bytes_of(stage.built(1))
    for number, since in ((0, hung_at), (1, probed_at)):
        went = [at for at in range(1, 80) if history[number][at] is not history[number][at - 1]]
        assert len(went) == 1, (number, went)
        assert went[0] >= since
        assert history[number][-1] is Health.UNHEALTHY
    assert all(
        one.health is Health.HEALTHY
        for number in (0, 1)
        for engine, one in stage.built(number).decisions.engines.items()
        if engine != key
    )
    # With equal data they serve the same again.
    assert bytes_of(stage.built(0)) == bytes_of(stage.built(1))


def test_replica_limits_stay_within_the_known_total() -> None:
    """With different views the limits differ: each uses its share of what it sees, and the sum is in between."""
    stage = staged(2)
    stage.rates = {f"g{number}": 30.0 for number in range(4)}
    for _ in range(40):
        now_s = stage.now_s + STEP_S
        for number, replica in enumerate(stage.replicas):
            for name in ("e1", "e2", "e3", "e4"):
                verdict = Verdict.HUNG if number == 0 and name == "e1" else Verdict.READY
                replica.fleet = with_report(replica.fleet, report(name, verdict, now_s, ReportSource.AGENT), now_s)
        stage.step()
    fewer, more = stage.total(0), stage.total(1)
    assert fewer < more
    assert 0.9 * fewer <= sum(stage.parts().values()) <= more * 1.05 + 4


def test_view_runtime_layers_are_equal_on_replicas() -> None:
    stage = staged(2)
    stage.step(times=4)
    assert any(url == RUNTIME for url, _ in bytes_of(stage.built(0))[A])
