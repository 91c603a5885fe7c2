"""One resource type of one stream: what the peer wants, what it is known to have, and what is due to it.

Both variants of the protocol are this one value. They differ in how a request is read (``subscribe`` and
``unsubscribe`` against ``replace``) and in how a response is filled (the changes against the whole state).

A resource counts as held when the peer has acknowledged it, never when it was sent. What is due follows from
comparing the snapshot with what the peer will hold once it has answered everything that is in flight.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from xds_server.model.snapshot import Resource, set_version, version_of
from xds_server.model.type_urls import CLUSTER, LISTENER, SECRET
from xds_server.xds.messages import (
    MAX_NAME_CHARACTERS,
    MAX_NAMES,
    Acked,
    Confirmed,
    Nacked,
    StreamError,
    StreamErrorKind,
    SubscriptionStatus,
    Sync,
    TypeSync,
    XdsVariant,
)

FULL_STATE: Final = frozenset((CLUSTER, LISTENER))
"""Types of which a SOTW response carries everything, so that what is absent is removed."""

SENT_SINGLY: Final = frozenset((SECRET,))
"""Types of which each resource goes out by itself, so that a refusal says what was refused.

Envoy (1.40, delta and SOTW) keeps one that it refused beside the one in use: sent again unchanged, it is confirmed
without a look, and the next good one of the same TLS context is refused in its place. So it is sent what it had.
"""

UNKNOWN: Final = "?"
"""In place of a version: the peer may hold any."""

GONE: Final = ""
"""In place of a version: the peer knows that the resource does not exist."""


@dataclass(slots=True, kw_only=True)
class PendingResponse:
    """One response in flight: what the peer will hold of each name if it accepts; ``None`` is gone."""

    nonce: str
    sequence: int
    sent_at_s: float
    content: Mapping[str, Resource | None]
    resources: tuple[Resource, ...]
    adds: bool
    reported: bool = False


@dataclass(slots=True, kw_only=True)
class Subscription:
    """The subscription to one type and all that is known of the peer's side of it.

    ``dirty`` holds the names to look at: outside it, the peer has or has been sent what the snapshot says.
    ``kept`` is what a SOTW peer holds of a ``FULL_STATE`` type, to be repeated when something newer was
    refused; ``unknown_content`` is true while a SOTW peer has content we never saw.
    ``second_try`` lets one response pass the limit of unanswered ones, once until the next answer
    (``tried_again``). ``implicit`` marks a subscription that the peer never made. ``rejected_fallbacks`` is what
    it also refused of a name, by version, when it got that instead of what it had refused.
    """

    type_url: str
    mode: XdsVariant
    implicit: bool = False
    wildcard: bool = False
    named_before: bool = False
    names: set[str] = field(default_factory=set)
    held: dict[str, str] = field(default_factory=dict)
    kept: dict[str, Resource] = field(default_factory=dict)
    unknown_content: bool = False
    pending: list[PendingResponse] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    rejected_fallbacks: set[tuple[str, str]] = field(default_factory=set)
    forced: set[str] = field(default_factory=set)
    dirty: set[str] = field(default_factory=set)
    unsettled: set[str] = field(default_factory=set)
    first_reply_due: bool = True
    second_try: bool = False
    tried_again: bool = False
    last_nonce: str = ""
    changed_at_s: float = 0.0
    nacked_at_s: float = 0.0
    reason: str = ""

    # What the peer wants

    def wants(self, name: str) -> bool:
        """Whether the peer is subscribed to ``name``."""
        return self.wildcard or name in self.names

    def begin_delta(
        self, subscribe: Iterable[str], initial_versions: Mapping[str, str], resources: Mapping[str, Resource]
    ) -> Confirmed:
        """Take the first request of a delta stream for this type."""
        asked = set(subscribe)
        self.named_before = bool(asked)
        # An empty first request means everything, for historical reasons and for these types only:
        # https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol#how-the-client-specifies-what-resources-to-return
        self.wildcard = "*" in asked or (not asked and self.type_url in FULL_STATE)
        self.names = _bounded(asked - {"*"})
        self.held = {name: version for name, version in initial_versions.items() if self.wants(name)}
        _bounded(set(self.held))
        self.dirty = self.names | self.held.keys() | (resources.keys() if self.wildcard else set())
        known = [item for name, version in self.held.items() if (item := _same(resources.get(name), version))]
        return Confirmed(type_url=self.type_url, resources=tuple(known))

    def begin_sotw(self, names: Iterable[str], version: str, resources: Mapping[str, Resource]) -> Confirmed:
        """Take the first request of a SOTW stream for this type."""
        self._replace_names(set(names))
        wanted = self._wanted(resources)
        self.dirty = self.names | wanted.keys()
        if not wanted or version != set_version(wanted.values()):
            self.unknown_content = bool(version)
            return Confirmed(type_url=self.type_url, resources=())
        self.held = {name: item.version for name, item in wanted.items()}
        if self.type_url in FULL_STATE:
            self.kept = wanted
        self.dirty -= wanted.keys()
        return Confirmed(type_url=self.type_url, resources=tuple(wanted.values()))

    def subscribe(self, names: Iterable[str], resources: Mapping[str, Resource]) -> None:
        """Add names (delta). What is asked for again is sent again: the peer may have forgotten it."""
        asked = set(names)
        if not asked:
            return
        self.named_before = True
        if "*" in asked:
            asked.remove("*")
            if not self.wildcard:
                self.wildcard, self.first_reply_due = True, True
                self.dirty |= resources.keys()
        self.names = _bounded(self.names | asked)
        self.forced |= asked
        self.dirty |= asked

    def unsubscribe(self, names: Iterable[str]) -> None:
        """Drop names (delta); names that were never asked for are ignored."""
        gone = set(names)
        if not gone:
            return
        if "*" in gone:
            self.wildcard = False
        # Under a wildcard the peer cannot know whether it may keep what it no longer names: it must be told.
        if self.wildcard:
            self.send_again(gone & self.names)
        self.names -= gone
        self._forget_unwanted()

    def replace(self, names: Iterable[str], resources: Mapping[str, Resource]) -> None:
        """Set the names (SOTW)."""
        before, was_wildcard = self.names, self.wildcard
        self._replace_names(set(names))
        if self.names != before or self.wildcard != was_wildcard:
            self.dirty |= self.names - before
            if self.wildcard and not was_wildcard:
                self.dirty |= resources.keys()
            self._forget_unwanted()

    def _replace_names(self, asked: set[str]) -> None:
        self.named_before = self.named_before or bool(asked)
        self.wildcard = "*" in asked or (not self.named_before and self.type_url in FULL_STATE)
        self.names = _bounded(asked - {"*"})

    def _forget_unwanted(self) -> None:
        if self.wildcard:
            return
        for known in (self.held, self.kept, self.rejected):
            for name in [name for name in known if name not in self.names]:
                del known[name]
        self.rejected_fallbacks = {one for one in self.rejected_fallbacks if one[0] in self.names}
        self.forced &= self.names
        self.dirty &= self.names

    def touch(
        self, changed: Collection[str], resources: Mapping[str, Resource], rolled_back: Collection[str]
    ) -> None:
        """Note that the snapshot has changed in these names."""
        touched = set(changed) if self.wildcard else self.names.intersection(changed)
        self.dirty |= touched | self.unsettled
        self.unsettled.clear()
        for name in touched & self.rejected.keys():
            if name not in rolled_back and not _same(resources.get(name), self.rejected[name]):
                del self.rejected[name]
                self.rejected_fallbacks = {one for one in self.rejected_fallbacks if one[0] != name}

    def send_again(self, names: Collection[str]) -> None:
        """Send these names even if the peer has them, where it is subscribed to them."""
        wanted = {name for name in names if self.wants(name)}
        self.forced |= wanted
        self.dirty |= wanted

    def clear_nack(self, names: Iterable[str]) -> None:
        """Let names be sent again that were refused in bad company."""
        for name in names:
            if self.rejected.pop(name, None) is not None:
                self.dirty.add(name)
        self.dirty |= self.unsettled
        self.unsettled.clear()

    # What is due

    def expected(self, name: str) -> str | None:
        """The version the peer holds once it has accepted all that is in flight; ``None``: never told."""
        for push in reversed(self.pending):
            if name in push.content:
                item = push.content[name]
                return item.version if item else GONE
        return self.held.get(name)

    def changes(
        self, resources: Mapping[str, Resource], rolled_back: Collection[str], *, removals: bool
    ) -> dict[str, Resource | None]:
        """What is due by name, ``None`` to remove; empty when the peer has or has been sent everything.

        Without ``removals``, what the peer holds and should lose waits (and stays dirty).
        """
        due: dict[str, Resource | None] = {}
        settled: list[str] = []
        # In one order for all streams, so that equal responses are equal bytes.
        for name in sorted(self.dirty):
            item = resources.get(name)
            if name in rolled_back and any(name in push.content for push in self.pending):
                continue  # The answer may well make the way back unnecessary.
            expected = self.expected(name)
            if not self._is_due(name, item, expected, name in rolled_back):
                settled.append(name)
            elif item is not None or not expected or removals:
                due[name] = item
        self.dirty.difference_update(settled)
        self.forced.difference_update(settled)
        return due

    def alone(self, changes: dict[str, Resource | None]) -> str:
        """Which of these changes goes out by itself; empty where all go together, as removals do."""
        found = (name for name, item in changes.items() if item) if self.type_url in SENT_SINGLY else ()
        return min(found, default="")

    def _is_due(self, name: str, item: Resource | None, expected: str | None, is_rolled_back: bool) -> bool:
        if not self.wants(name):
            return False
        if item is not None:
            is_refused = self.rejected.get(name) == item.version or (name, item.version) in self.rejected_fallbacks
            return not is_refused and (item.version != expected or name in self.forced)
        if is_rolled_back and expected:
            return False  # Nothing acceptable to send, and something older in place.
        if self.mode is XdsVariant.SOTW and self.type_url not in FULL_STATE:
            # SOTW has no word for "does not exist"; if it comes to exist, it is sent anew.
            self.held.pop(name, None)
            return False
        if expected == GONE:
            return name in self.forced
        return expected is not None or name in self.names or name in self.forced

    def state(
        self,
        resources: Mapping[str, Resource],
        changes: Mapping[str, Resource | None],
        rolled_back: Collection[str],
    ) -> dict[str, Resource] | None:
        """All that a SOTW response must carry; ``None`` when it would delete what we cannot name."""
        wanted = self._wanted(resources)
        content = {name: item for name, item in wanted.items() if self.rejected.get(name) != item.version}
        for name, item in self._in_place().items():
            # What was refused stays as it is, and removals that are not in ``changes`` wait for something else.
            if name not in content and name not in changes and self.wants(name):
                content[name] = item
        if self.unknown_content and any(self.wants(name) and name not in content for name in rolled_back):
            return None
        return content

    def _in_place(self) -> dict[str, Resource]:
        """What a SOTW peer has of a ``FULL_STATE`` type once it has accepted all that is in flight."""
        if self.type_url not in FULL_STATE:
            return {}
        content: dict[str, Resource | None] = dict(self.kept)
        for push in self.pending:
            content.update(push.content)
        return {name: item for name, item in content.items() if item is not None}

    def version_in_place(self) -> str:
        """As ``set_version``, of all named that the peer has once it has accepted what is in flight."""
        return version_of((name, version) for name in sorted(self.names) if (version := self.expected(name)))

    def _wanted(self, resources: Mapping[str, Resource]) -> dict[str, Resource]:
        if self.wildcard:
            return dict(resources)
        return {name: item for name in sorted(self.names) if (item := resources.get(name))}

    # What was sent, and what the peer said of it

    def sent(self, push: PendingResponse, changes: Collection[str]) -> None:
        """Note a response that goes out because of ``changes``."""
        if not self.pending:
            self.changed_at_s = push.sent_at_s
        self.pending.append(push)
        self.last_nonce = push.nonce
        self.dirty.difference_update(changes)
        self.forced.difference_update(changes)
        self.first_reply_due = False

    def answer(
        self, nonce: str, error: str | None, now_s: float, rolled_back: Collection[str]
    ) -> Acked | Nacked | None:
        """Take an ACK or NACK; ``None`` when it answers nothing that is in flight."""
        index = next((i for i, push in enumerate(self.pending) if push.nonce == nonce), None)
        if index is None:
            return None
        push = self.pending[index]
        for passed_over in self.pending[:index]:
            self._pass_over(passed_over, push)
        del self.pending[: index + 1]
        self.implicit = self.second_try = self.tried_again = False
        self.changed_at_s = now_s
        if error is None:
            self._accept(push)
            return Acked(
                type_url=self.type_url, resources=push.resources, latency_s=max(0.0, now_s - push.sent_at_s)
            )
        self.nacked_at_s, self.reason = now_s, error
        news = (item for name, item in push.content.items() if item and self.held.get(name) != item.version)
        suspects = tuple(news) or push.resources
        instead = self.rejected.keys() & set(rolled_back) if self.type_url in SENT_SINGLY else set()
        if self.type_url in SENT_SINGLY:
            self.held.update((item.name, UNKNOWN) for item in suspects)
        self.rejected_fallbacks.update((item.name, item.version) for item in suspects if item.name in instead)
        self.rejected.update((item.name, item.version) for item in suspects if item.name not in instead)
        # Whether the peer removed what it was told to is not known; it is told again with the next change.
        self.unsettled.update(name for name, item in push.content.items() if item is None)
        return Nacked(type_url=self.type_url, suspects=suspects, reason=error, sequence=push.sequence)

    def _pass_over(self, unanswered: PendingResponse, answered: PendingResponse) -> None:
        """Note that a response will not be answered any more; what the peer made of it is not known."""
        self.dirty.update(unanswered.content)
        if self.mode is XdsVariant.DELTA:
            for name, item in unanswered.content.items():
                if item is not None and name not in answered.content and self.wants(name):
                    self.held[name] = UNKNOWN

    def _accept(self, push: PendingResponse) -> None:
        whole = self.mode is XdsVariant.SOTW and self.type_url in FULL_STATE
        for name, item in push.content.items():
            if item is not None:
                if self.wants(name):
                    self.held[name] = item.version
            elif name in self.names:
                self.held[name] = GONE
            else:
                self.held.pop(name, None)
        if whole:
            self.kept = {item.name: item for item in push.resources if self.wants(item.name)}
            self.unknown_content = False

    def sync(self, resources: Mapping[str, Resource], rolled_back: Collection[str]) -> TypeSync:
        """How this type of this stream stands."""
        refused = {
            name: version
            for name, version in self.rejected.items()
            if name in rolled_back or _same(resources.get(name), version)
        }
        late = self.pending or self.dirty or self.implicit
        state = Sync.NACK if refused else Sync.STALE if late else Sync.SYNCED
        return TypeSync(self.type_url, state, refused, self.reason if refused else "")

    def status(self, resources: Mapping[str, Resource], rolled_back: Collection[str]) -> SubscriptionStatus:
        """This type of this stream, for people."""
        now = self.sync(resources, rolled_back)
        held = sorted((name, version) for name, version in self.held.items() if version != GONE)
        return SubscriptionStatus(
            type_url=self.type_url,
            state=now.state,
            since_s=self.nacked_at_s if now.refused else self.changed_at_s,
            version=version_of(held) if held else "",
            held=len(held),
            unacked=len(self.pending),
            refused=now.refused,
            reason=now.reason,
        )


def _same(item: Resource | None, version: str) -> Resource | None:
    return item if item is not None and item.version == version else None


def _bounded(names: set[str]) -> set[str]:
    if len(names) > MAX_NAMES:
        raise StreamError(
            f"{len(names)} resource names of one type; at most {MAX_NAMES} are served", StreamErrorKind.NAMES
        )
    if any(len(name) > MAX_NAME_CHARACTERS for name in names):
        raise StreamError(f"a resource name of more than {MAX_NAME_CHARACTERS} characters", StreamErrorKind.NAMES)
    return names
