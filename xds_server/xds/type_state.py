"""One resource type of one stream: subscription, accepted and rejected resources, and due responses.

Both protocol variants share this state. They differ in how a request is read (``subscribe`` and ``unsubscribe``
or a full list of names) and in how a response is filled (changes or full state).

Due responses follow from comparing the snapshot with what the peer will hold once it has answered all responses
in flight.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from xds_server.model.snapshot import Resource, set_version, version_of
from xds_server.model.type_urls import SECRET
from xds_server.xds.acked_resources import GONE, AckedResources
from xds_server.xds.full_content import FEW, FullContent, FullContents
from xds_server.xds.in_flight import InFlight, PendingResponse
from xds_server.xds.messages import (
    MAX_UNACKED,
    NAME_BYTES,
    Acked,
    Confirmed,
    DeltaRequest,
    Nacked,
    Request,
    SubscriptionStatus,
    Sync,
    TypeSync,
    XdsVariant,
    reason_tail,
)
from xds_server.xds.rejections import Rejections, is_version
from xds_server.xds.subscription import FULL_STATE, WILDCARD, Subscription, check_names

SENT_SINGLY: Final = frozenset((SECRET,))
"""Types whose resources are sent one by one, so that a NACK identifies the rejected one.

Envoy (1.40, delta and SOTW) stores a rejected secret next to the one in use. Sent again unchanged, it is accepted
unchecked, and the next good one of the same TLS context is rejected in its place. So Envoy is sent the previous
secret.
"""

_NO_REJECTIONS: Final = Rejections()


class ServedType(NamedTuple):
    """What the snapshot has of one type: resources by name, and the names that are rolled back in it."""

    resources: Mapping[str, Resource]
    rolled_back: Collection[str]


class DueContent(NamedTuple):
    """Content of one response.

    ``content``: what the peer will hold of each name, ``None`` if removed. ``changes``: names that cause the
    response. The two differ in SOTW, which repeats unchanged resources. ``whole``: both are all of it.
    """

    content: Mapping[str, Resource | None]
    changes: Collection[str]
    whole: FullContent | None = None


@dataclass(slots=True, kw_only=True)
class TypeState:
    """The state of one type on one stream.

    Each resource of the type is in one of these states:

    ===========  ==========================================  =================================================
    state        where it shows                              left by
    ===========  ==========================================  =================================================
    requested    ``subscription`` wants it, ``dirty`` has    a response: sent; nothing to send: acked
                 it
    sent         a response in ``in_flight`` carries it      ACK: acked; NACK: nacked; answer to a later
                                                             response: requested
    acked        ``acked`` has the version of the snapshot   the snapshot changes it: requested
    nacked       ``rejections`` has the version of the       the snapshot changes it: requested; at fault, or
                 snapshot                                    suspect: rolled back; not at fault: requested
    rolled back  the snapshot names it in ``rolled_back``    the policies change it: requested; it was only
                 and has its fallback; or, if this peer      suspect: on trial
                 rejected it and there is none, nothing
    on trial     the snapshot has it again, and              ACK: acked; NACK or no answer: rolled back
                 ``clear_nack`` has dropped its rejection
    held back    the snapshot names it in ``rolled_back``    a peer accepts it, or the policies change it:
                 and has its fallback, though this peer      requested
                 has not rejected it
    ===========  ==========================================  =================================================

    The NACKs of a peer decide all states but the last, for its own stream only. *Held back* takes refusals by a
    quorum of hosts or identities of the peer's proxy version, no ACK of any peer, and a fallback (``NackPolicy``).

    A version that the peer rejected is never sent to it again before ``clear_nack``. A name that is rolled
    back waits for the answers to all responses that carry it: they may make the rollback unnecessary.

    ``dirty`` holds the names to look at: of all others, the peer has or has been sent what the snapshot has.
    ``forced`` are those to send even if the peer has them. ``changed_at_s`` is the clock of the last change.
    ``unknown_bytes``: memory for resources that the peer held before and that do not exist.
    ``contents`` are shared with other streams.
    """

    type_url: str
    variant: XdsVariant
    subscription: Subscription
    in_flight: InFlight
    acked: AckedResources = field(default_factory=AckedResources)
    rejections: Rejections = _NO_REJECTIONS
    dirty: set[str] = field(default_factory=set)
    forced: set[str] = field(default_factory=set)
    first_response_due: bool = True
    changed_at_s: float = 0.0
    unknown_bytes: int = 0
    contents: FullContents = field(default_factory=FullContents)

    @classmethod
    def new(
        cls, type_url: str, variant: XdsVariant, now_s: float, contents: FullContents | None = None
    ) -> "TypeState":
        """The state of a type that the peer has not requested yet."""
        # NACKs of resources that go out singly are attributed one after another.
        limit = 1 if type_url in SENT_SINGLY else MAX_UNACKED
        return cls(
            type_url=type_url,
            variant=variant,
            subscription=Subscription(type_url=type_url),
            in_flight=InFlight(limit=limit),
            changed_at_s=now_s,
            contents=contents or FullContents(),
        )

    @property
    def carries_full_state(self) -> bool:
        """Whether a response removes what it does not carry."""
        return self.variant is XdsVariant.SOTW and self.type_url in FULL_STATE

    # Requests

    @property
    def held_bytes(self) -> int:
        """Estimated memory for the names that the peer sent."""
        subscription = self.subscription
        return subscription.characters + NAME_BYTES * len(subscription.names) + self.unknown_bytes

    def begin(self, request: Request, resources: Mapping[str, Resource]) -> Confirmed:
        """Process the first request for this type; returns what the peer still holds from an earlier stream."""
        if isinstance(request, DeltaRequest):
            confirmed = self._begin_delta(request.subscribe, request.initial_versions, resources)
            self.unsubscribe(request.unsubscribe)
        else:
            confirmed = self._begin_sotw(request.names, request.version, resources)
        return Confirmed(type_url=self.type_url, resources=confirmed)

    def begin_implicit(self, resources: Mapping[str, Resource]) -> None:
        """Subscribe to everything for a peer that sent no request."""
        self.subscription = replace(self.subscription, wildcard=True, implicit=True)
        self.dirty = set(resources)

    def _begin_delta(
        self, subscribe: Iterable[str], initial_versions: Mapping[str, str], resources: Mapping[str, Resource]
    ) -> tuple[Resource, ...]:
        wanted = self.subscription = self.subscription.replaced(subscribe, len(resources))
        held = {name: version for name, version in initial_versions.items() if wanted.wants(name)}
        check_names(held, len(held), len(resources))
        self.acked.versions = held
        self.unknown_bytes = sum(
            NAME_BYTES + len(name) + len(version) for name, version in held.items() if name not in resources
        )
        self.dirty = {*wanted.names, *held, *(resources if wanted.wildcard else ())}
        return tuple(item for name in held if (item := resources.get(name)) and self.acked.is_acked(item))

    def _begin_sotw(
        self, names: Iterable[str], version: str, resources: Mapping[str, Resource]
    ) -> tuple[Resource, ...]:
        self.subscription = self.subscription.replaced(names, len(resources))
        wanted = self.subscription.wanted(resources)
        self.dirty = {*self.subscription.names, *wanted}
        if not wanted or version != set_version(wanted.values()):
            self.acked.has_foreign_content = bool(version)
            return ()
        self.acked.confirm(wanted.values())
        if self.carries_full_state:
            self.acked.content = wanted
        self.dirty -= wanted.keys()
        return tuple(wanted.values())

    def take(self, request: Request, served: ServedType, now_s: float) -> Acked | Nacked | None:
        """Process a further request; returns its answer to a response in flight, if any."""
        is_current = request.nonce == self.in_flight.last_nonce
        error = None if request.error is None else reason_tail(request.error)
        event = self._answer(request.nonce, error, served, now_s) if request.nonce else None
        if isinstance(request, DeltaRequest):
            # Subscription changes count whatever the nonce: only SOTW may drop a request as stale.
            self.subscribe(request.subscribe, served.resources)
            self.unsubscribe(request.unsubscribe)
        elif is_current:
            self.replace_names(request.names, served.resources)
        return event

    def subscribe(self, names: Collection[str], resources: Mapping[str, Resource]) -> None:
        """Add names (delta). A name that the peer had is sent again: the peer may have lost the resource."""
        if not names:
            return
        was_wildcard = self.subscription.wildcard
        self.subscription.add(names, len(resources))
        if self.subscription.wildcard and not was_wildcard:
            self.first_response_due = True
            self.dirty |= resources.keys()
        requested = set(names) - {WILDCARD}
        self.forced |= requested
        self.dirty |= requested

    def unsubscribe(self, names: Collection[str]) -> None:
        """Drop names (delta)."""
        if not names:
            return
        was_wildcard = self.subscription.wildcard
        dropped = self.subscription.remove(names)
        if self.subscription.wildcard:
            # The peer cannot know whether the wildcard still covers a name that it dropped: send it again.
            self.send_again(dropped)
        elif was_wildcard:
            self._retain_wanted()
        elif dropped:
            self.acked.forget_all(dropped)
            self.rejections = self.rejections.retained(self.subscription.wants)
            self._settle(dropped)

    def replace_names(self, names: Iterable[str], resources: Mapping[str, Resource]) -> None:
        """Set the names (SOTW)."""
        before, self.subscription = self.subscription, self.subscription.replaced(names, len(resources))
        now = self.subscription
        if now.names == before.names and now.wildcard == before.wildcard:
            return
        self.dirty |= now.names - before.names
        if now.wildcard and not before.wildcard:
            self.dirty |= resources.keys()
        self._retain_wanted()

    def _retain_wanted(self) -> None:
        if self.subscription.wildcard:
            return
        wants = self.subscription.wants
        self.acked.retain(wants)
        self.rejections = self.rejections.retained(wants)
        self.forced &= self.subscription.names
        self.dirty &= self.subscription.names

    # Snapshot changes

    def touch(self, changed: Collection[str], served: ServedType) -> None:
        """Record that these names changed in the snapshot."""
        touched = self.subscription.wanted_of(changed)
        self.dirty |= touched
        if self.rejections is not _NO_REJECTIONS:
            self._repeat_removals()
            ended = {
                name
                for name, version in self.rejections.versions.items()
                if name in touched
                and name not in served.rolled_back
                and not is_version(served.resources.get(name), version)
            }
            # Fallbacks of a name on trial stay rejected; one that is desired now is tried again.
            desired = [(name, version) for name, version in self.rejections.fallbacks if name in touched]
            desired = [one for one in desired if one[0] not in served.rolled_back]
            desired = [one for one in desired if is_version(served.resources.get(one[0]), one[1])]
            self.rejections = self.rejections.superseded(ended).cleared(desired)

    def send_again(self, names: Collection[str]) -> None:
        """Send these names even if the peer has them, if it is subscribed to them."""
        wanted = self.subscription.wanted_of(names)
        self.forced |= wanted
        self.dirty |= wanted

    def clear_nack(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Allow sending these (name, version) again: another resource of the response may be at fault."""
        before, self.rejections = self.rejections, self.rejections.cleared(pairs)
        if self.rejections is before:
            return  # a peer that refuses removals, too, would be sent them without end
        self.dirty |= {name for name, _ in before.pairs} - {name for name, _ in self.rejections.pairs}
        self._repeat_removals()

    def reject(self, item: Resource) -> None:
        """Record that the peer never answered this resource, as if it had rejected it."""
        self.rejections = self.rejections.rejecting(item)
        self.dirty.add(item.name)

    def reattribute_nack(self, item: Resource, unaffected: Resource) -> None:
        """Record a NACK of ``unaffected``, which the peer stores next to what it uses, as one of ``item``."""
        self.rejections = self.rejections.cleared([(unaffected.name, unaffected.version)])
        self.acked.confirm((unaffected,))
        if self.acked.is_acked(item):  # accepted unchecked
            self.rejections = self.rejections.rejecting(item)
            self.acked.mark_unknown((item.name,))
            self.dirty.add(item.name)

    def _repeat_removals(self) -> None:
        self.dirty |= self.rejections.removals
        self.rejections = self.rejections.without_removals()

    # Due responses

    def expected(self, name: str) -> str | None:
        """Version that the peer holds once it has accepted everything in flight; ``None`` if none."""
        for response in reversed(self.in_flight.responses):
            if name in response.content:
                item = response.content[name]
                return item.version if item else GONE
        return self.acked.versions.get(name)

    def due(self, served: ServedType, *, removals: bool) -> DueContent | None:
        """Content of the next response; ``None`` if none is due.

        Without ``removals``, pending removals wait (and stay dirty).
        """
        if self._lacks_all(served):
            whole = self.contents.of(served.resources)
            return DueContent(content=whole.by_name, changes=whole.by_name, whole=whole)
        changes = self._changes(served, removals=removals)
        single = self._sent_singly(changes)
        if single:
            changes = {single: changes[single]}
        if not changes and not self._is_empty_response_due():
            return None
        if self.variant is XdsVariant.DELTA:
            return DueContent(content=changes, changes=changes)
        content = self._full_content(served, changes)
        if content is None:
            return None
        if single:
            content = {name: item for name, item in content.items() if name == single}
        removed = {name: None for name, item in changes.items() if item is None}
        return DueContent(content={**content, **removed}, changes=changes)

    def _lacks_all(self, served: ServedType) -> bool:
        """Whether the next response has all resources of the type: the peer wants all, and has none (delta)."""
        resources, rolled_back = served
        return (
            len(self.dirty) > FEW
            and self.variant is XdsVariant.DELTA
            and not (self.acked.versions or self.in_flight.responses or rolled_back)
            and self.rejections is _NO_REJECTIONS
            and self.type_url not in SENT_SINGLY
            and self.dirty == resources.keys()
            and (self.subscription.wildcard or self.dirty <= self.subscription.names)
        )

    def _changes(self, served: ServedType, *, removals: bool) -> dict[str, Resource | None]:
        """Due changes by name, ``None`` to remove; empty if the peer has or was sent everything."""
        due: dict[str, Resource | None] = {}
        settled: list[str] = []
        resources, rolled_back = served
        unknown = self._newly_unknown(served)
        # In the same order for all streams, so that equal responses have equal bytes.
        for name in sorted(self.dirty):
            if name in unknown:
                due[name] = None
                continue
            item = resources.get(name)
            is_rolled_back = name in rolled_back
            if is_rolled_back and self.in_flight.carries(name):
                continue  # The answer may make the rollback unnecessary.
            expected = self.expected(name)
            if not self._is_due(name, item, expected, is_rolled_back=is_rolled_back):
                settled.append(name)
            elif item is not None or not expected or removals:
                due[name] = item
        self._settle(settled)
        return due

    def _newly_unknown(self, served: ServedType) -> Set[str]:
        """Names that do not exist and that the peer has just subscribed to: each is due as removed (delta).

        What the loop over names would find, by sets: a peer may subscribe to ten thousand made-up names.
        """
        if self.variant is not XdsVariant.DELTA:
            return frozenset()
        # One after another, as sets look at all of the others.
        found = self.dirty & self.subscription.names
        for known in (
            served.resources,
            self.acked.versions,
            served.rolled_back,
            *[response.content for response in self.in_flight.responses],
        ):
            found = {name for name in found if name not in known}
        return found

    def _is_due(self, name: str, item: Resource | None, expected: str | None, *, is_rolled_back: bool) -> bool:
        if not self.subscription.wants(name):
            return False
        if item is not None:
            is_wanted = item.version != expected or name in self.forced
            return is_wanted and not self.rejections.has_rejected(item)
        if is_rolled_back and expected:
            return False  # No fallback, and the peer holds something older.
        if self.variant is XdsVariant.SOTW and not self.carries_full_state:
            # SOTW cannot express "does not exist"; a resource that appears is sent again.
            self.acked.forget(name)
            return False
        if expected == GONE:
            return name in self.forced
        return expected is not None or name in self.subscription.names or name in self.forced

    def _settle(self, names: Collection[str]) -> None:
        self.dirty.difference_update(names)
        self.forced.difference_update(names)

    def _sent_singly(self, changes: Mapping[str, Resource | None]) -> str:
        """Name of a change that is sent alone; empty if all are sent together, as removals are."""
        if self.type_url not in SENT_SINGLY:
            return ""
        return min((name for name, item in changes.items() if item), default="")

    def _is_empty_response_due(self) -> bool:
        """Whether a first request needs an empty answer."""
        is_first, self.first_response_due = self.first_response_due, False
        answers_all = self.type_url in FULL_STATE and not self.subscription.implicit
        return is_first and answers_all and not self.dirty and not self.acked.versions

    def _full_content(
        self, served: ServedType, changes: Mapping[str, Resource | None]
    ) -> dict[str, Resource] | None:
        """Complete content of a SOTW response; ``None`` if it would delete resources that we cannot name."""
        wants, rejected = self.subscription.wants, self.rejections.versions
        wanted = self.subscription.wanted(served.resources)
        content = {name: item for name, item in wanted.items() if rejected.get(name) != item.version}
        if self.type_url in FULL_STATE:
            for name, item in self.in_flight.outcome(self.acked.content).items():
                # Rejected resources stay unchanged; removals missing in ``changes`` wait for a condition.
                if name not in content and name not in changes and wants(name):
                    content[name] = item
        if self.acked.has_foreign_content and any(
            wants(name) and name not in content for name in served.rolled_back
        ):
            return None
        return content

    def sent(self, due: DueContent, *, nonce: str, now_s: float) -> PendingResponse:
        """Record that this is sent, as the response with this nonce."""
        if due.whole is not None:
            resources = due.whole.resources
        else:
            resources = tuple([item for item in due.content.values() if item is not None])
        held = self.acked.versions
        response = PendingResponse(
            nonce=nonce,
            sent_at_s=now_s,
            content=due.content,
            resources=resources,
            adds=any(not (held.get(item.name) and self.expected(item.name)) for item in resources),
            whole=due.whole,
        )
        if not self.in_flight.responses:
            self.changed_at_s = now_s
        self.in_flight.add(response)
        self._settle(due.changes)
        self.first_response_due = False
        return response

    def version_in_place(self) -> str:
        """``set_version`` of all named resources once the peer has accepted everything in flight."""
        names = sorted(self.subscription.names)
        return version_of((name, version) for name in names if (version := self.expected(name)))

    # Answers

    def _answer(self, nonce: str, error: str | None, served: ServedType, now_s: float) -> Acked | Nacked | None:
        """Process an ACK or NACK; ``None`` if it answers no response in flight."""
        answered = self.in_flight.answer(nonce)
        if answered is None:
            return None
        response = answered.response
        for passed_over in answered.passed_over:
            self._pass_over(passed_over, response)
        if self.subscription.implicit:
            self.subscription = replace(self.subscription, implicit=False)
        self.changed_at_s = now_s
        if error is None:
            self._accept(response)
            latency_s = max(0.0, now_s - response.sent_at_s)
            return Acked(type_url=self.type_url, resources=response.resources, latency_s=latency_s)
        nacked = self._nacked(response, error)
        self._reject(nacked, response, served, now_s)
        return nacked

    def _nacked(self, response: PendingResponse, reason: str) -> Nacked:
        """The NACK of a response: suspects are the resources new to the peer, or all if none was new."""
        resources = (item for item in response.content.values() if item)
        new = tuple(item for item in resources if not self.acked.is_acked(item))
        return Nacked(type_url=self.type_url, suspects=new or response.resources, reason=reason)

    def _reject(self, nacked: Nacked, response: PendingResponse, served: ServedType, now_s: float) -> None:
        # A fallback is rejected as one even by a peer that never got what others rejected.
        fallbacks = {
            item.name for item in nacked.suspects if is_version(served.resources.get(item.name), item.version)
        }
        if self.type_url in SENT_SINGLY:
            self.acked.mark_unknown(item.name for item in nacked.suspects)
        self.rejections = self.rejections.nacked(
            nacked.suspects,
            fallbacks_of=(fallbacks | self.rejections.versions.keys()) & set(served.rolled_back),
            removals=[name for name, item in response.content.items() if item is None],
            reason=nacked.reason,
            now_s=now_s,
        )

    def _pass_over(self, unanswered: PendingResponse, answered: PendingResponse) -> None:
        """Record that a response will not be answered; whether the peer applied it is unknown."""
        self.dirty.update(unanswered.content)
        if self.variant is XdsVariant.DELTA:
            self.acked.mark_unknown(
                name
                for name, item in unanswered.content.items()
                if item is not None and name not in answered.content and self.subscription.wants(name)
            )

    def _accept(self, response: PendingResponse) -> None:
        wanted = self.subscription
        if response.whole is not None and wanted.wildcard:
            self.acked.versions.update(response.whole.versions)
            return
        for name, item in response.content.items():
            if item is not None:
                if wanted.wants(name):
                    self.acked.versions[name] = item.version
            elif name in wanted.names:
                self.acked.mark_gone(name)
            else:
                self.acked.forget(name)
        if self.carries_full_state:
            self.acked.replace_content({item.name: item for item in response.resources if wanted.wants(item.name)})

    # Status

    @property
    def is_unsettled(self) -> bool:
        """Whether a response is due or unanswered."""
        return bool(self.in_flight.responses or self.dirty)

    def sync(self, served: ServedType) -> TypeSync:
        """Sync state of the peer."""
        rejected = self.rejections.current(*served)
        is_late = self.is_unsettled or self.subscription.implicit
        state = Sync.NACK if rejected else Sync.STALE if is_late else Sync.SYNCED
        return TypeSync(self.type_url, state, rejected, self.rejections.reason if rejected else "")

    def status(self, served: ServedType) -> SubscriptionStatus:
        """Sync state with details for operators."""
        now = self.sync(served)
        held = self.acked.held()
        return SubscriptionStatus(
            type_url=self.type_url,
            state=now.state,
            since_s=self.rejections.nacked_at_s if now.rejected else self.changed_at_s,
            version=version_of(held) if held else "",
            held=len(held),
            unacked=len(self.in_flight.responses),
            rejected=now.rejected,
            reason=now.reason,
        )
