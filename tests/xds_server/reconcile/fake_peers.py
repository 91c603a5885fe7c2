"""Fake proxies as lists, and policies for them, for tests of the reconciler."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from engine.report import EngineReport, Verdict
from policies.findings import PolicyErrors
from policies.load import load_contents
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.policy_state import AcceptedPolicies, RejectedPolicies
from xds_server.model.snapshot import OwnResources, Snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.model.view import View
from xds_server.reconcile.reconciler import Reconciler

LIMIT_S = 60.0
VIEW = View(zone="z1")


def text(name: str, *, engines: int = 2, probe: bool = False) -> str:
    endpoints = ", ".join(f"{{address: 10.0.0.{n + 1}, port: 8000, name: e{n}}}" for n in range(engines))
    return (
        "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\n"
        f"metadata: {{name: {name}}}\n"
        f"spec: {{model: m, endpoints: [{endpoints}], probe: {{enabled: {str(probe).lower()}}}}}\n"
    )


def accepted(*names: str, engines: int = 2, probe: bool = False) -> AcceptedPolicies:
    texts = {f"{name}.yaml": text(name, engines=engines, probe=probe) for name in names}
    policies = load_contents({Path(name): content.encode() for name, content in texts.items()})
    return AcceptedPolicies(policies=policies, texts=texts, digest=f"digest of {' '.join(names)} {engines}")


def in_zones() -> AcceptedPolicies:
    """One pool with an engine in each of three zones."""
    endpoints = ", ".join(f"{{address: 10.0.0.{n}, port: 8000, zone: z{n}}}" for n in (1, 2, 3))
    content = (
        "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\nmetadata: {name: p}\n"
        f"spec: {{model: m, endpoints: [{endpoints}], probe: {{enabled: false}}}}\n"
    )
    texts = {"zones.yaml": content}
    policies = load_contents({Path(name): text.encode() for name, text in texts.items()})
    return AcceptedPolicies(policies=policies, texts=texts, digest="digest of zones")


def refused() -> RejectedPolicies:
    try:
        load_contents({Path("bad.yaml"): b"kind: ["})
    except PolicyErrors as errors:
        return RejectedPolicies(errors=tuple(errors.exceptions), digest="bad")
    raise AssertionError


class Peers:
    """Connected proxies, and the snapshots published to them."""

    def __init__(self) -> None:
        self.connected: set[View] = {VIEW}
        self.roles = {"gateway": 1}
        self.published: list[Mapping[View, Snapshot]] = []

    def views(self) -> frozenset[View]:
        return frozenset(self.connected)

    def crowding(self) -> frozenset[str]:
        return frozenset()

    def proxies_by_role(self) -> Mapping[str, int]:
        return self.roles

    def proxies_by_zone(self) -> Mapping[str, int]:
        return dict(Counter(view.zone for view in self.connected))

    def nodes(self) -> Mapping[str, View]:
        return {}

    def publish(self, snapshots: Mapping[View, Snapshot], own: Mapping[str, OwnResources]) -> None:
        self.published.append(snapshots)
        self.own = own

    @property
    def pools(self) -> list[str]:
        return sorted(self.published[-1][VIEW].of(CLUSTER)) if self.published else []

    def endpoints(self, pool: str) -> bytes:
        return self.published[-1][VIEW].of(ENDPOINT)[pool].value


async def until(condition) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(peers: Peers, **settings) -> AsyncIterator[Reconciler]:
    reconciler = Reconciler(peers, Metrics(), **settings)
    task = asyncio.create_task(reconciler.run())
    try:
        yield reconciler
    finally:
        task.cancel()
        await asyncio.wait([task])


def report(engine: str, verdict: Verdict, at_s: float = 1.0, pool: str = "p") -> EngineReport:
    return EngineReport(pool=pool, engine=engine, verdict=verdict, evidence="a test", observed_at_s=at_s)


async def settled(reconciler: Reconciler) -> None:
    """Wait for a full round that starts after now."""
    built = reconciler.built
    reconciler.proxies_changed()
    await until(lambda: reconciler.built is not built)
