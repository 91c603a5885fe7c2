"""What an orchestrator says of engines: that they end, or are gone."""

from pathlib import Path

import structlog

from policies.load import load_contents
from tests.xds_server.reconcile.peers import Peers, accepted, running, settled, text, until
from xds_server.fleet import EngineId
from xds_server.fleet.orchestrator import OrchestratorWord, Standing
from xds_server.reconcile.loop import Reconciler
from xds_server.reconcile.words import HELD_S
from xds_server.sources.files import Accepted


def word(standing: Standing, *engines: str) -> dict[EngineId, OrchestratorWord]:
    said = OrchestratorWord(standing=standing, reason=f"a test says {standing}")
    return {EngineId("p", engine): said for engine in engines}


ALL_BUT_ONE = [f"e{number}" for number in range(1, 12)]


async def test_a_scale_down_passes_and_a_selector_that_finds_nobody_is_held() -> None:
    for words, state in ((word(Standing.LEAVING, *ALL_BUT_ONE), "accepted"), ({}, "held")):
        peers = Peers()
        async with running(peers) as reconciler:
            reconciler.offer(accepted("p", engines=12))
            await reconciler.ready.wait()
            reconciler.stand(words)
            # A source that no longer lists them no longer speaks of them, and says so first.
            reconciler.stand({})
            reconciler.offer(accepted("p", engines=1))
            await until(lambda r=reconciler: r.files.digest == "digest of p 1")
            assert reconciler.files.state == state
            assert reconciler.fleet is not None
            assert len(reconciler.fleet.pools["p"]) == (1 if state == "accepted" else 12)


async def test_what_is_held_passes_when_it_turns_out_that_the_engines_end() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p", engines=12))
        await reconciler.ready.wait()
        reconciler.offer(accepted("p", engines=1))
        await until(lambda: reconciler.files.state == "held")
        reconciler.stand(word(Standing.LEAVING, "e1"))
        with structlog.testing.capture_logs() as logs:
            await settled(reconciler)
        assert reconciler.files.state == "held"
        reconciler.stand(word(Standing.GONE, *ALL_BUT_ONE))
        await until(lambda: reconciler.files.state == "accepted")
        assert [one["event"] for one in logs].count("policies.held") <= 1


async def test_an_end_holds_until_policies_no_longer_have_the_engine_at_that_address() -> None:
    peers, now_s = Peers(), [100.0]
    async with running(peers, clock=lambda: now_s[0]) as reconciler:
        reconciler.offer(accepted("p", engines=4))
        await reconciler.ready.wait()
        reconciler.stand(word(Standing.GONE, "e1") | word(Standing.UNFIT, "e2"))
        await settled(reconciler)
        reconciler.stand({})
        await settled(reconciler)
        assert standings(reconciler) == ["present", "gone", "present", "present"]
        now_s[0] += HELD_S
        await settled(reconciler)
        assert standings(reconciler) == ["present"] * 4
        # Another pod of that name is another engine.
        reconciler.stand(word(Standing.GONE, "e1"))
        reconciler.stand({})
        await settled(reconciler)
        texts = {"p.yaml": text("p", engines=4).replace("10.0.0.2", "10.0.0.9")}
        moved = load_contents({Path(name): content.encode() for name, content in texts.items()})
        reconciler.offer(Accepted(policies=moved, texts=texts, digest="moved"))
        await until(lambda: reconciler.serving is not None and reconciler.serving.digest == "moved")
        await settled(reconciler)
        assert standings(reconciler) == ["present"] * 4


def standings(reconciler: Reconciler) -> list[str]:
    assert reconciler.built is not None
    return [engine.standing.value for engine in reconciler.built.inputs.fleet.pools["p"]]


async def test_an_engine_that_is_gone_is_no_endpoint() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        before = peers.endpoints("p")
        assert b"10.0.0.2" in before
        reconciler.stand(word(Standing.GONE, "e1"))
        await until(lambda: b"10.0.0.2" not in peers.endpoints("p"))
        assert b"10.0.0.1" in peers.endpoints("p")
        reconciler.stand(word(Standing.PRESENT, "e1"))
        await until(lambda: peers.endpoints("p") == before)
