"""Finds and isolates the parts of a resource that one proxy refuses: each ModelRoute in the routes of a port.

A proxy refuses (NACK) the routes of a port as a whole. Each proxy is judged by itself, and a part is refused only
on this proof: the proxy refused content in which it had accepted everything else. To get there, the parts that it
has not accepted are sent again in groups: first what other proxies accepted last, then by halves. Parts that wait
for their trial are served in the form that this proxy accepted last, else in one that is on trial, else as a 503
reply after all others. The ``frame`` around the parts is one more part.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from xds_server.model.snapshot import (
    Resource,
    ResourcePart,
    ResourceParts,
    Snapshot,
    content_hash,
    content_of,
    resource,
)
from xds_server.publish.suspect_trials import SuspectTrials
from xds_server.wire.route_parts import RouteFrame
from xds_server.xds import ContentKey

ResourceKey = tuple[str, str]
"""Type URL and name."""

MAX_NACKS: Final = 64
"""NACKs of one version of a resource after which it is no longer sent: eight bad routes of 100 take fewer."""

_NOTHING: Final[frozenset[str]] = frozenset()
_NO_PARTS: Final[tuple[ResourcePart, ...]] = ()


class PartChoice(NamedTuple):
    """What one proxy may be sent of a resource.

    ``acked``: what it accepted last. ``refused``: contents that it refused. ``tried``: other contents that it may
    be sent, ``None`` for all. ``stopped``: desired version that is not sent.
    """

    acked: Resource | None = None
    refused: frozenset[str] = _NOTHING
    tried: frozenset[str] | None = None
    stopped: str = ""


PartChoices = tuple[tuple[ResourceKey, PartChoice], ...]
"""Choices by resource, for resources that are not sent as desired."""

Accepted = Callable[[ResourceKey], Iterable[Resource]]
"""Contents of a resource that proxies accepted, newest first."""


class PartIsolation:
    """Parts of all resources that one proxy accepted, refused, or is tried with."""

    def __init__(self) -> None:
        self.choices: PartChoices = ()
        self._acked: dict[ResourceKey, Resource] = {}
        self._refused: set[ContentKey] = set()
        self._trials: SuspectTrials[ContentKey] = SuspectTrials()
        self._nacks: dict[ResourceKey, tuple[str, int]] = {}
        self._stopped: dict[ResourceKey, str] = {}
        self._unrecorded: set[ResourceKey] = set()
        self._desired: Snapshot | None = None

    @property
    def is_searching(self) -> bool:
        """Whether suspects wait for their trial or its answer."""
        return bool(self._trials)

    def knows(self, key: ResourceKey) -> bool:
        """Whether this proxy accepted or refused parts of this resource."""
        return key in self._acked or key in self._nacks

    def acked(self, items: Iterable[Resource]) -> None:
        """Record the ACK of these resources."""
        for item in items:
            if item.parts is not None:
                self._acked[item.type_url, item.name] = item
                self._unrecorded.add((item.type_url, item.name))
                if self.choices:
                    self._trials.remove(part_keys(item))
                    self._refused.difference_update(part_keys(item))
        if self.choices:
            self._update()

    def nacked(self, items: Collection[Resource], desired: Snapshot, accepted: Accepted) -> tuple[ContentKey, ...]:
        """Record the NACK of these resources; returns the contents that it shows to be refused."""
        proven = {key for item in items for key in self._proven(item)}
        suspects = [key for item in items for key in part_keys(item) if key not in proven]
        refused: list[ContentKey] = []
        if len(suspects) == 1:
            refused = suspects
            self._refused.update(suspects)
            self._trials.remove(suspects)
        for item in items:
            if not suspects or self._is_last_nack(item, desired):
                version = _version(desired, item)
                self._stopped[item.type_url, item.name] = version
                self._trials.remove(part_keys(item))
                refused.append((item.type_url, item.name, content_of(version)))
        if len(suspects) > 1:
            tried = [key for key in suspects if key[:2] not in self._stopped]
            known = () if self._trials else self._accepted_before(items, tried, accepted)
            self._trials.add(dict.fromkeys((*known, *tried)), known)
        self._update()
        return tuple(refused)

    def advance(self, served: Iterable[Resource]) -> bool:
        """Begin the next trial if none continues with what is ``served``; returns whether the choices changed."""
        if not self._trials:
            return False
        self._trials.advance({key for item in served for key in part_keys(item)}.__contains__)
        before = self.choices
        self._update()
        return self.choices != before

    def desire(self, desired: Snapshot, accepted: Accepted) -> None:
        """Forget what was refused of contents that are no longer desired: they may be tried again."""
        if desired is self._desired:
            return
        self._desired = desired if self.choices else None
        if not self.choices:
            return
        self._stopped = {
            key: version
            for key, version in self._stopped.items()
            if (item := desired.of(key[0]).get(key[1])) and item.version == version
        }
        keys = {key[:2] for key in self._refused}
        forms = (form for key in keys for form in (desired.of(key[0]).get(key[1]), *accepted(key)) if form)
        self._refused &= {key for form in forms for key in part_keys(form)}
        self._update()

    def take_settled(self, is_known: Callable[[ContentKey], bool]) -> list[Resource]:
        """Resources accepted since the last call, without those on trial.

        One with a reply of ours counts only if it has a part that is not yet known to be accepted: a proxy that
        refuses at random must not displace what others accepted.
        """
        if not self._unrecorded:
            return []
        searched = {key[:2] for key in self._trials.all}
        settled = self._unrecorded - searched
        self._unrecorded &= searched
        found = [self._acked[key] for key in settled]
        return [
            item
            for item in found
            if not any(map(is_reply, parts_of(item))) or not all(map(is_known, part_keys(item)))
        ]

    def _proven(self, item: Resource) -> tuple[ContentKey, ...]:
        known = self._acked.get((item.type_url, item.name))
        return () if known is None else part_keys(known)

    def _is_last_nack(self, item: Resource, desired: Snapshot) -> bool:
        key, version = (item.type_url, item.name), _version(desired, item)
        known, count = self._nacks.get(key, (version, 0))
        count = count + 1 if known == version else 1
        self._nacks[key] = (version, count)
        return count > MAX_NACKS

    def _accepted_before(
        self, items: Iterable[Resource], suspects: Collection[ContentKey], accepted: Accepted
    ) -> tuple[ContentKey, ...]:
        """What other proxies accepted last, for parts that this proxy never accepted; not all of ``suspects``."""
        found: list[ContentKey] = []
        for item in items:
            key = (item.type_url, item.name)
            own = self._acked.get(key)
            names = {part.name for part in parts_of(item)} - {part.name for part in parts_of(own)}
            for form in accepted(key):
                if form.parts is None or not self._refused.isdisjoint(part_keys(form)):
                    continue
                if form.version != item.version and names:
                    frame = () if own else ((*key, frame_content(form.parts)),)
                    parts = (part for part in form.parts.parts if part.name in names and not is_reply(part))
                    found += (*frame, *((*key, part.content) for part in parts))
                    break
        return tuple(found) if set(suspects) - set(found) else ()

    def _update(self) -> None:
        keys = sorted({*self._stopped, *(key[:2] for key in (*self._refused, *self._trials.all))})
        self.choices = tuple((key, self._choice(key)) for key in keys)

    def _choice(self, key: ResourceKey) -> PartChoice:
        def of_key(contents: Iterable[ContentKey]) -> frozenset[str]:
            return frozenset(one[2] for one in contents if one[:2] == key)

        return PartChoice(
            acked=self._acked.get(key),
            refused=of_key(self._refused),
            tried=of_key(self._trials.on_trial) if of_key(self._trials.all) else None,
            stopped=self._stopped.get(key, ""),
        )


def parts_of(item: Resource | None) -> tuple[ResourcePart, ...]:
    """Parts of a resource; none of one that is not isolated by parts."""
    return _NO_PARTS if item is None or item.parts is None else item.parts.parts


def part_keys(item: Resource) -> tuple[ContentKey, ...]:
    """Contents of a resource that a proxy may refuse: its frame and its parts, without replies of ours."""
    if item.parts is None:
        return ()
    contents = (frame_content(item.parts), *(part.content for part in item.parts.parts if not is_reply(part)))
    return tuple((item.type_url, item.name, content) for content in contents)


def frame_content(parts: ResourceParts) -> str:
    """Identity of the frame around parts."""
    return content_hash(b"\n".join(parts.frame))


def is_reply(part: ResourcePart) -> bool:
    """Whether this stands in for a refused part."""
    return part.value == part.instead


def with_choice(
    item: Resource, choice: PartChoice, accepted: Iterable[Resource], held: Collection[str]
) -> Resource | None:
    """The resource with the parts that a proxy may be sent; ``None`` to leave what the proxy has.

    ``held``: contents that a quorum of other proxies refused. They are sent if nothing can replace them.
    """
    if item.parts is None or item.version == choice.stopped:
        return None if item.parts else item
    forms = [form.parts for form in (choice.acked, *accepted) if form and form.parts]
    proven = frozenset(key[2] for key in part_keys(choice.acked)) if choice.acked else _NOTHING

    def is_refused(content: str) -> bool:
        allowed = choice.tried is None or content in choice.tried
        return content not in proven and (content in choice.refused or not allowed)

    def may_be_sent(content: str) -> bool:
        is_held = choice.tried is None and content in held and content not in proven
        return not is_refused(content) and not is_held

    frames = (form.frame for form in (item.parts, *forms) if may_be_sent(frame_content(form)))
    frame = next(frames, None if is_refused(frame_content(item.parts)) else item.parts.frame)
    if frame is None:
        return None
    kept: list[ResourcePart] = []
    replies: list[ResourcePart] = []
    for part in item.parts.parts:
        known = (one for form in forms for one in form.parts if one.name == part.name and not is_reply(one))
        found = next((one for one in (part, *known) if may_be_sent(one.content)), None)
        if found is not None:
            kept.append(found)
        elif not is_refused(part.content):
            kept.append(part)
        elif part.instead:
            replies.append(_reply(part))
    if frame == item.parts.frame and tuple(kept) == item.parts.parts:
        return item
    parts = (*sorted(kept, key=lambda part: (part.rank, part.name)), *replies)
    value = RouteFrame(*frame).filled(part.value for part in parts)
    return resource(item.type_url, item.name, value, item.origins, ResourceParts(frame=frame, parts=parts))


def _reply(part: ResourcePart) -> ResourcePart:
    return ResourcePart(
        name=part.name,
        value=part.instead,
        content=content_hash(part.instead),
        origins=part.origins,
        rank=part.rank,
        instead=part.instead,
    )


def _version(desired: Snapshot, item: Resource) -> str:
    """Desired version of a resource; of the refused one if none is desired."""
    return desired.of(item.type_url).get(item.name, item).version
