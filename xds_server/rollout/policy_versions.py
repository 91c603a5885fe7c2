"""Chooses which policies are offered: those of the source, or an applied version that replaces them.

An applied version stays in force until the files change; that is reported, and survives a restart. Everything
served becomes a version of the history, with author and reason.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from policies.findings import PolicyError
from policies.model import PolicySet
from xds_server.admin_api.version_types import (
    ApplyRequest,
    CanaryStatus,
    ChangeStatus,
    HistoryStatus,
    RollbackRequest,
    VersionTexts,
)
from xds_server.decide.diff.change import Change, ChangeKind, Subject
from xds_server.model.policy_state import AcceptedPolicies, PolicyState, RejectedPolicies, ServingPolicies
from xds_server.model.text import count_text, names_text
from xds_server.reconcile.reconciler import Reconciler
from xds_server.rollout.apply_request import check_author_and_reason, parse_policies
from xds_server.rollout.canary_controller import CanaryController, CanaryPlan, CanaryRun
from xds_server.rollout.history.change_errors import RefusedChangeError, UnknownVersionError, UnusableTextsError
from xds_server.rollout.history.policy_version import (
    MAX_NAME,
    MAX_TEXT_BYTES,
    ORDERED,
    PolicyVersion,
    Provenance,
    VersionSource,
    version_status,
)
from xds_server.rollout.history.version_archive import VersionArchive
from xds_server.rollout.precondition import check_precondition, is_served, replaced_version, same_policies


def version_change(before: PolicyVersion | None, after: PolicyVersion) -> Change:
    """The change to ``after``, where ``before`` was served."""
    return Change(
        kind=ChangeKind.POLICIES,
        subject=Subject(),
        before="" if before is None else f"version {before.number}",
        after=f"version {after.number}",
        reason=f"{after.how}: {after.reason}" if after.reason else after.how,
        returns="the policy files change" if after.source in ORDERED else "",
    )


def canary_change(after: str, reason: str, *, alarm: bool = False) -> Change:
    """The result of a canary, as a change."""
    return Change(
        kind=ChangeKind.POLICIES,
        subject=Subject(),
        before="",
        after=f"canary {after}",
        reason=reason,
        alarm=alarm,
    )


ANSWER_WITHIN_S: Final = 4.0
"""How long a request waits for the result of its change; commands wait a second longer."""

MAX_CANARY_PERCENT: Final = 100.0
MAX_CANARY_S: Final = 3600.0

_LOOK_EACH_S: Final = 0.02
_FILES_WIN: Final = "the files changed meanwhile and take precedence"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """Policies that were applied and are not served yet."""

    accepted: AcceptedPolicies
    asked: Provenance


class PolicyVersions:
    """Mediates between the policy source and the reconciler; see the module.

    ``offer`` takes the state of the source, ``on_adopted`` what the reconciler serves; the rest is for the admin
    port.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        archive: VersionArchive,
        *,
        source: str = "files",
        canaries: CanaryController | None = None,
        tell: Callable[[Change], object] = lambda _: None,
        flaws: Callable[[PolicySet], tuple[PolicyError, ...]] = lambda _: (),
        ordered: Callable[[str], None] = lambda _: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``flaws`` returns why valid policies cannot be used here at present.

        ``ordered`` gets the digest of applied policies before they are served.
        """
        self._reconciler = reconciler
        self._archive = archive
        self._source = VersionSource(source)
        self._canaries = canaries
        self._tell = tell
        self._flaws = flaws
        self._ordered = ordered
        self._wall = wall
        self._read: PolicyState | None = None
        self._said: PolicyState | None = None
        self._stands: PolicyVersion | None = None
        self._standing: AcceptedPolicies | None = None
        self._waits = False
        self._pending: _Pending | None = None

    def restore(self) -> None:
        """Load the history, and the applied version that was in force when the last run ended."""
        self._archive.restore()
        last = self._archive.last
        if last is None or last.source not in ORDERED or self._source is VersionSource.KUBERNETES:
            return
        try:
            self._standing = parse_policies(last.texts)
        except UnusableTextsError as error:
            reasons = [str(one) for one in error.errors[:10]]
            _log.warning("history.unusable", version=last.number, reason=str(error), errors=reasons)
            return
        self._stands = last

    # -- inputs --------------------------------------------------------------------------------------------

    def offer(self, state: PolicyState) -> None:
        """Record the state of the source; an applied version replaces it until the source changes."""
        self._read = state
        state = self._here(state)
        if self._said is None or state.digest != self._said.digest:
            self._pending = None
            self._canary_back((_FILES_WIN,))
        self._said, self._waits = state, False
        if isinstance(state, RejectedPolicies):
            self._pending = None  # release what was held back
            self._reconciler.offer(state)  # broken files end nothing
            return
        if self._stands is not None and self._standing is not None:
            beside = {self._stands.beside, self._stands.beside_former}
            if same_policies(beside, {state.digest, state.former}):
                _log.info("policies.applied_stands", version=self._stands.number, by=self._stands.by)
                # After a restart its dependencies may be missing; then the last run's version is served.
                standing = self._here(self._standing)
                self._waits = isinstance(standing, RejectedPolicies)
                self._reconciler.offer(standing)
                return
            _log.warning(
                "policies.applied_ends",
                version=self._stands.number,
                reason="the files changed since it was applied and take precedence",
            )
        self._stands = self._standing = None
        self._reconciler.offer(state)

    def _here(self, state: PolicyState) -> PolicyState:
        flaws = self._flaws(state.policies) if isinstance(state, AcceptedPolicies) else ()
        return RejectedPolicies(errors=flaws, digest=state.digest) if flaws else state

    def reoffer(self) -> None:
        """Retry policies, of the source or applied, that could not be used and now may be."""
        if isinstance(self._read, AcceptedPolicies) and (self._waits or isinstance(self._said, RejectedPolicies)):
            self.offer(self._read)

    def on_adopted(self, serving: ServingPolicies) -> None:
        """Record that these policies are served."""
        if serving.stale:
            return
        pending, newest = self._pending, self._archive.newest
        mine = pending is not None and pending.accepted.digest == serving.digest
        if not mine:
            self._pending = None  # for example, touched files replaced what was held back
        if not mine and is_served(newest, serving):
            return  # after a restart, or with other comments
        asked = pending.asked if mine and pending is not None else Provenance(source=self._source)
        version = PolicyVersion(
            number=self._archive.next_number(),
            digest=serving.digest,
            at_unix_s=round(self._wall(), 3),
            source=asked.source,
            by=asked.by or asked.source.value,
            reason=asked.reason,
            texts=serving.texts,
            beside=self._said.digest if mine and self._said is not None else "",
            restores=asked.restores,
            former=serving.former,
            beside_former=self._said.former if mine and isinstance(self._said, AcceptedPolicies) else "",
        )
        if mine and pending is not None:
            self._pending, self._stands, self._standing = None, version, pending.accepted
        self._archive.add(version)
        self._tell(version_change(newest, version))

    # -- queries -------------------------------------------------------------------------------------------

    def history(self) -> HistoryStatus:
        """All versions."""
        serving = self._serving_number()
        return HistoryStatus(
            versions=tuple(version_status(one, serving=one.number == serving) for one in self._archive.versions),
            kept=self._archive.kept,
            stands=self._stands.number if self._stands is not None and self._stands.number == serving else 0,
            damaged=self._archive.damaged,
            failure=self._archive.failure,
        )

    def texts(self, number: int | None) -> VersionTexts:
        """The texts of a version, of the served one for None; raises ``UnknownVersionError``."""
        if number is None:
            serving = self._reconciler.serving
            if serving is None:
                raise UnknownVersionError("nothing served yet")
            return VersionTexts(number=self._serving_number(), digest=serving.digest, texts=serving.texts)
        version = self._version(number)
        return VersionTexts(number=version.number, digest=version.digest, texts=version.texts)

    def _serving_number(self) -> int:
        serving, newest = self._reconciler.serving, self._archive.newest
        return newest.number if newest is not None and is_served(newest, serving) else 0

    def _version(self, number: int) -> PolicyVersion:
        version = self._archive.version(number)
        if version is None:
            raise UnknownVersionError(f"no version {number}; `switchgear history` lists all versions")
        return version

    # -- changes -------------------------------------------------------------------------------------------

    async def apply(self, asked: ApplyRequest) -> ChangeStatus:
        """Serve these texts; raises ``RefusedChangeError`` or ``UnusableTextsError``."""
        self._check_open(asked.expect)
        check_author_and_reason(asked.by, asked.reason)
        if any(not name.isprintable() or len(name) > MAX_NAME for name in asked.texts):
            raise RefusedChangeError("a file name must be one line of printable characters")
        if sum(len(name) + len(text) for name, text in asked.texts.items()) > MAX_TEXT_BYTES:
            raise RefusedChangeError(f"these texts exceed {MAX_TEXT_BYTES // 1024**2} MiB together")
        accepted = await asyncio.to_thread(self._usable, asked.texts)
        if asked.dry_run:
            return ChangeStatus(state="judged", digest=accepted.digest)
        self._check_open(asked.expect)  # again: validation took a while
        told = Provenance(source=VersionSource.APPLIED, by=asked.by, reason=asked.reason)
        if asked.canary_percent:
            return self._begin_canary(accepted, told, asked)
        return await self._serve(accepted, told)

    def _begin_canary(self, accepted: AcceptedPolicies, told: Provenance, asked: ApplyRequest) -> ChangeStatus:
        if self._canaries is None:
            raise RefusedChangeError("this server has no proxies for a canary")
        if not 0 < asked.canary_percent <= MAX_CANARY_PERCENT:
            raise RefusedChangeError(f"--canary must be above 0 % and at most {MAX_CANARY_PERCENT:g} %")
        if not 1 <= asked.for_s <= MAX_CANARY_S:
            raise RefusedChangeError("--for must be between 1s and 1h")
        if asked.slo_percent is not None and not 0 < asked.slo_percent <= MAX_CANARY_PERCENT:
            raise RefusedChangeError(f"--slo must be above 0 % and at most {MAX_CANARY_PERCENT:g} %")
        plan = CanaryPlan(
            accepted=accepted,
            provenance=told,
            percent=asked.canary_percent,
            for_s=asked.for_s,
            yes_if_unknown=asked.yes_if_unknown,
            slo_percent=asked.slo_percent,
        )
        refusal = self._canaries.begin(plan)
        if refusal:
            return ChangeStatus(state="failed", digest=accepted.digest, reason=refusal)
        nodes = self._canaries.status().proxies
        where = f"{count_text(len(nodes), 'proxy')}: {names_text(nodes, 3)}"
        begins = f"canary {accepted.digest[:12]} by {told.by or 'unknown'} on {where}"
        self._tell(canary_change("begins", begins))
        return ChangeStatus(state="canary", digest=accepted.digest)

    def canary(self) -> CanaryStatus:
        """The running canary, or the last one."""
        return CanaryStatus(state="none") if self._canaries is None else self._canaries.status()

    def end_canary(self, by: str) -> bool:
        """Roll back the canary; False if none runs."""
        check_author_and_reason(by)
        return self._canary_back((f"ended by {by or 'unknown'}",))

    def _canary_back(self, reasons: tuple[str, ...]) -> bool:
        if self._canaries is None or self._canaries.running is None:
            return False
        # Also if they were just offered to all: after the rollback is confirmed they must not be served later.
        held = self._reconciler.withdraw(self._canaries.running.plan.accepted)
        self._pending = None
        if held and self._said is not None:
            self._reconciler.offer(self._standing or self._said)  # report their state again
        self._canaries.end("rolled-back", reasons)
        self._tell(canary_change("rolled back", "; ".join(reasons), alarm=True))
        return True

    async def run(self) -> None:
        """Run canaries until cancelled."""
        if self._canaries is not None:
            await self._canaries.run(self._canary_ended)

    async def _canary_ended(self, run: CanaryRun, goes_on: bool, reasons: tuple[str, ...]) -> None:
        canaries = self._canaries
        if canaries is None or canaries.running is not run:
            return
        if not goes_on:
            self._canary_back(reasons)
            return
        done = await self._serve(run.plan.accepted, run.plan.provenance)
        if canaries.running is not run:
            return  # the files changed meanwhile
        if done.state == "served":
            canaries.end("served", reasons, done.version)
        else:
            self._canary_back((done.reason,))

    async def rollback(self, asked: RollbackRequest) -> ChangeStatus:
        """Serve an earlier version again; raises ``UnknownVersionError``."""
        self._check_open(asked.expect)
        check_author_and_reason(asked.by, asked.reason)
        version = self._version(asked.version) if asked.version else self._before()
        accepted = await asyncio.to_thread(self._usable, version.texts)
        self._check_open(asked.expect)
        told = Provenance(source=VersionSource.ROLLBACK, by=asked.by, reason=asked.reason, restores=version.number)
        return await self._serve(accepted, told)

    def _usable(self, texts: Mapping[str, str]) -> AcceptedPolicies:
        """The policies of these texts; ``UnusableTextsError`` with every problem, this server's included."""
        accepted = parse_policies(texts)
        if flaws := self._flaws(accepted.policies):
            raise UnusableTextsError(flaws)
        return accepted

    def _before(self) -> PolicyVersion:
        """The newest version that differs from the served one."""
        serving = self._reconciler.serving
        for version in reversed(self._archive.versions):
            if serving is None or not (is_served(version, serving) or version.texts == serving.texts):
                return version
        raise UnknownVersionError("there is no earlier version")

    def _check_open(self, expect: str) -> None:
        """``RefusedChangeError`` if changes are not possible now, or another version than expected is served."""
        if self._source is VersionSource.KUBERNETES:
            raise RefusedChangeError(
                "policies come from the cluster: change them there, with kubectl or your GitOps tool; "
                "`switchgear diff` shows the effect before"
            )
        if self._said is None or self._reconciler.serving is None:
            raise RefusedChangeError("the files have not been read yet: try again in a moment")
        if self._canaries is not None and self._canaries.running is not None:
            by = self._canaries.running.plan.provenance.by or "unknown"
            raise RefusedChangeError(
                f"a canary by {by} is running: wait for it, or end it with `switchgear apply --end-canary`"
            )
        if self._pending is not None and self._reconciler.source_state.state not in ("held", "failed"):
            raise RefusedChangeError("another change is in progress: see `switchgear history`")
        if expect and self._files_coming():
            raise RefusedChangeError("the files changed and are being validated: try again in a moment")
        number = self._serving_number()
        check_precondition(expect, self._reconciler.serving, self._archive.versions, number, self._wall())

    def _files_coming(self) -> bool:
        """Whether the present files are neither served nor held back yet."""
        said, serving, files = self._said, self._reconciler.serving, self._reconciler.source_state
        if self._stands is not None or serving is None or not isinstance(said, AcceptedPolicies):
            return False
        judged_already = files.digest == said.digest and files.state in ("held", "failed")
        return not judged_already and not same_policies(
            {said.digest, said.former}, {serving.digest, serving.former}
        )

    async def _serve(self, accepted: AcceptedPolicies, asked: Provenance) -> ChangeStatus:
        """Offer the policies and wait for the result."""
        pending = self._pending = _Pending(accepted=accepted, asked=asked)
        files, digest, kept = self._reconciler.source_state, accepted.digest, self._archive
        self._ordered(digest)
        self._reconciler.offer(accepted)
        give_up_s = time.monotonic() + ANSWER_WITHIN_S
        while time.monotonic() < give_up_s:
            stands = self._stands if self._standing is accepted else None
            # A confirmed change must survive a kill: save it first.
            if stands is not None and kept.settled(stands.number):
                return self._served(stands, kept.failure)
            if stands is None and self._pending is not pending:
                return ChangeStatus(state="superseded", digest=digest, reason=_FILES_WIN)
            now = self._reconciler.source_state
            if now is not files and now.digest == digest and now.state in ("held", "failed"):
                if now.state == "failed":
                    self._pending = None
                return ChangeStatus(state=now.state, digest=digest, reason=now.reason)
            await asyncio.sleep(_LOOK_EACH_S)
        if self._stands is not None and self._standing is accepted:  # a round may take longer than this waits
            reason = "" if kept.settled(self._stands.number) else "not saved to disk yet"
            return self._served(self._stands, reason)
        return ChangeStatus(state="pending", digest=digest, reason="still being validated")

    def _served(self, version: PolicyVersion, reason: str) -> ChangeStatus:
        before = replaced_version(self._archive.version(version.number - 1), self._wall())
        return ChangeStatus(
            state="served", digest=version.digest, version=version.number, reason=reason, replaced=before
        )
