"""Two concurrent changes: one with an expectation undoes no other unseen; one without reports what it replaced."""

import asyncio

import pytest

from tests.xds_server.reconcile.fake_peers import accepted, refused
from tests.xds_server.rollout.test_policy_versions import asked, serving
from xds_server.admin_api.version_types import RollbackRequest
from xds_server.rollout.history.change_errors import RefusedChangeError


async def test_precondition_lets_one_of_two_concurrent_applies_win() -> None:
    async with serving() as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        both = await asyncio.gather(
            server.changing.apply(asked("p", "q", by="ann", expect="1")),
            server.changing.apply(asked("p", "r", by="bob", expect="1")),
            return_exceptions=True,
        )
        served = [one for one in both if not isinstance(one, BaseException)]
        assert [(one.state, one.version) for one in served] == [("served", 2)]
        (refusal,) = [one for one in both if isinstance(one, BaseException)]
        assert isinstance(refusal, RefusedChangeError)
        assert len(server.told) == 2


async def test_failed_precondition_names_the_intervening_change() -> None:
    async with serving() as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        await server.changing.apply(asked("p", "q", by="ann", reason="more room"))
        for change in (
            server.changing.apply(asked("p", "r", by="bob", expect="1")),
            server.changing.apply(asked("p", "r", by="bob", expect="1", dry_run=True)),
            server.changing.rollback(RollbackRequest(by="bob", expect="1")),
        ):
            with pytest.raises(
                RefusedChangeError, match=r"version 2 \(applied by ann, .* ago: more room.*switchgear diff"
            ):
                await change
        assert len(server.told) == 2, "they had no effect"
        done = await server.changing.rollback(RollbackRequest(by="bob", expect="2"))
        assert (done.version, done.replaced and (done.replaced.number, done.replaced.by)) == (3, (2, "ann"))


async def test_precondition_by_digest() -> None:
    async with serving() as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        first = await server.changing.apply(asked("p", "q", by="ann"))
        assert first.replaced is not None
        assert (first.replaced.number, first.replaced.how) == (1, "from files")
        await server.changing.apply(asked("p", "r", by="bob", expect=first.digest[:12]))
        with pytest.raises(
            RefusedChangeError, match=f"^{first.digest[:12]} is not served any more; since then: version 3 .*bob"
        ):
            await server.changing.apply(asked("p", "q", expect=first.digest[:12]))
        with pytest.raises(RefusedChangeError, match="version 7 is not served; now version 3"):
            await server.changing.apply(asked("p", "r", expect="7"))
        with pytest.raises(RefusedChangeError, match="is not a version"):
            await server.changing.apply(asked("p", "r", expect="newest"))


async def test_precondition_covers_files_under_validation() -> None:
    async with serving() as server:
        server.changing.offer(accepted("p"))
        await server.serves("p")
        server.changing.offer(accepted("p", "r"))  # before any round
        with pytest.raises(RefusedChangeError, match="the files changed"):
            await server.changing.apply(asked("p", "q", expect="1"))
        await server.serves("p", "r")
        with pytest.raises(RefusedChangeError, match=r"version 2 \(from files"):
            await server.changing.apply(asked("p", "q", expect="1"))


@pytest.mark.parametrize("state", ["refused", "held"])
async def test_precondition_ignores_unserved_files(state: str) -> None:
    async with serving() as server:
        server.changing.offer(accepted("p", engines=8))
        await server.serves("p")
        server.changing.offer(refused() if state == "refused" else accepted("p", engines=1))
        while server.reconciler.source_state.state != state:
            await asyncio.sleep(0.01)
        done = await server.changing.apply(asked("p", "q", engines=8, expect="1"))
        assert (done.state, done.version) == ("served", 2)
