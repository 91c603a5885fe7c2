"""Terminating and deleted pods."""

from pathlib import Path

import structlog

from policies.load import load_contents
from tests.xds_server.reconcile.fake_peers import Peers, accepted, running, settled, text, until
from xds_server.model.fleet import EngineId
from xds_server.model.pod_state import PodPhase, PodState
from xds_server.model.policy_state import AcceptedPolicies
from xds_server.reconcile.orchestrator_states import HELD_S
from xds_server.reconcile.reconciler import Reconciler


def word(standing: PodPhase, *engines: str) -> dict[EngineId, PodState]:
    said = PodState(standing=standing, reason=f"a test says {standing}")
    return {EngineId("p", engine): said for engine in engines}


ALL_BUT_ONE = [f"e{number}" for number in range(1, 12)]


async def test_scale_down_passes_and_an_empty_selector_is_held() -> None:
    for words, state in ((word(PodPhase.LEAVING, *ALL_BUT_ONE), "accepted"), ({}, "held")):
        peers = Peers()
        async with running(peers) as reconciler:
            reconciler.offer(accepted("p", engines=12))
            await reconciler.ready.wait()
            reconciler.on_pod_states(words)
            # A source that no longer lists them first drops their states.
            reconciler.on_pod_states({})
            reconciler.offer(accepted("p", engines=1))
            await until(lambda r=reconciler: r.source_state.digest == "digest of p 1")
            assert reconciler.source_state.state == state
            assert reconciler.fleet is not None
            assert len(reconciler.fleet.pools["p"]) == (1 if state == "accepted" else 12)


async def test_held_policies_pass_once_the_pods_terminate() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p", engines=12))
        await reconciler.ready.wait()
        reconciler.offer(accepted("p", engines=1))
        await until(lambda: reconciler.source_state.state == "held")
        reconciler.on_pod_states(word(PodPhase.LEAVING, "e1"))
        with structlog.testing.capture_logs() as logs:
            await settled(reconciler)
        assert reconciler.source_state.state == "held"
        reconciler.on_pod_states(word(PodPhase.GONE, *ALL_BUT_ONE))
        await until(lambda: reconciler.source_state.state == "accepted")
        assert [one["event"] for one in logs].count("policies.held") <= 1


async def test_terminating_pod_stays_ejected_until_undeclared() -> None:
    peers, now_s = Peers(), [100.0]
    async with running(peers, clock=lambda: now_s[0]) as reconciler:
        reconciler.offer(accepted("p", engines=4))
        await reconciler.ready.wait()
        reconciler.on_pod_states(word(PodPhase.GONE, "e1") | word(PodPhase.UNFIT, "e2"))
        await settled(reconciler)
        reconciler.on_pod_states({})
        await settled(reconciler)
        assert standings(reconciler) == ["present", "gone", "present", "present"]
        now_s[0] += HELD_S
        await settled(reconciler)
        assert standings(reconciler) == ["present"] * 4
        # Another pod of that name is another engine.
        reconciler.on_pod_states(word(PodPhase.GONE, "e1"))
        reconciler.on_pod_states({})
        await settled(reconciler)
        texts = {"p.yaml": text("p", engines=4).replace("10.0.0.2", "10.0.0.9")}
        moved = load_contents({Path(name): content.encode() for name, content in texts.items()})
        reconciler.offer(AcceptedPolicies(policies=moved, texts=texts, digest="moved"))
        await until(lambda: reconciler.serving is not None and reconciler.serving.digest == "moved")
        await settled(reconciler)
        assert standings(reconciler) == ["present"] * 4


def standings(reconciler: Reconciler) -> list[str]:
    assert reconciler.built is not None
    return [engine.pod_phase.value for engine in reconciler.built.inputs.fleet.pools["p"]]


async def test_deleted_pod_has_no_endpoint() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        before = peers.endpoints("p")
        assert b"10.0.0.2" in before
        reconciler.on_pod_states(word(PodPhase.GONE, "e1"))
        await until(lambda: b"10.0.0.2" not in peers.endpoints("p"))
        assert b"10.0.0.1" in peers.endpoints("p")
        reconciler.on_pod_states(word(PodPhase.PRESENT, "e1"))
        await until(lambda: peers.endpoints("p") == before)
