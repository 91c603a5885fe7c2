"""What proxies have accepted and refused, and what is served in place of what they refused.

A refusal is judged by what is known of the refused content, because Envoy does not always say what was wrong
and not every refusal is the content's fault:

- Envoy names the resource ("Error adding/updating cluster(s) c: ..."): that one is at fault.
- Envoy names none (a constraint of the message itself): only content that no proxy has accepted is suspect.
  One suspect is at fault. Of several, all are parked, then tried one at a time: an ACK clears the one on trial,
  a NACK convicts it, and the next one is tried.
- What another proxy has accepted is not the content's fault but that proxy's (a port in use on its host): it is
  rolled back for nobody. The stream remembers not to send it to that proxy again.
- A certificate is at fault once ``CONVINCING_NACKS`` proxies refused it and none has accepted it; until then it is
  rolled back for whoever refuses it. The one before it ends by itself, so one broken proxy, be it the only one
  there, must not keep the new one from the others. None is ever tried again: Envoy confirms unseen what it has
  refused before.

Parked content is replaced by the last accepted content of the same view, else of any view that may see the same,
else by nothing: routes and limits have one name in all views, and name pools that not every proxy may see. While a
listener or route is parked, accepted clusters, endpoints and secrets that are no longer wanted stay, and while a
cluster is, secrets: what is rolled back may still name them. A park ends with the next different content of that
name.
"""

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from xds_server.model.snapshot import Resource, Snapshot, content_of, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET
from xds_server.model.view import View

ResourceKey = tuple[str, str]
"""Type URL and name."""

FORGET_AFTER_S: Final = 600.0
"""Accepted content that nobody wants any more is kept this long for a rollback that may still name it."""

CONVINCING_NACKS: Final = 3
"""Proxies that refuse a certificate before it is taken for the certificate's fault."""

_NEAR: Final = 64
"""Characters before a name that tell whether a refusal means it: white space may stand between."""

_LISTED: Final = re.compile(r"(?:\(s\)|[,;\n])\s*\Z")
_QUOTED: Final = re.compile(r"name:\s*\Z")
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


class RollbackScope(Enum):
    """For whom refused content is rolled back."""

    EVERYONE = "everyone"  # refused, and accepted by no proxy
    PEER = "peer"  # others accepted it: only the proxy that refused goes without
    SUSPECT = "suspect"  # one of several; each is tried on its own


@dataclass(frozen=True, slots=True, kw_only=True)
class NackAttribution:
    """The judgement of one refusal: what is at fault, for whom it is rolled back, and which others are cleared."""

    at_fault: tuple[Resource, ...]
    scope: RollbackScope
    cleared: tuple[Resource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedContent:
    """What a restart should know of a refusal: refused content hashes of a name, and what is served instead."""

    type_url: str
    name: str
    contents: tuple[str, ...]
    instead: Resource | None


@dataclass(slots=True)
class _View:
    """What proxies of a view accepted; ``former`` is what they had of a secret before that."""

    accepted: dict[ResourceKey, Resource] = field(default_factory=dict)
    former: dict[ResourceKey, Resource] = field(default_factory=dict)
    unwanted_since_s: dict[ResourceKey, float] = field(default_factory=dict)


class NackPolicy:
    """The memory of ACKs and NACKs of all proxies; ``effective`` applies it to a desired snapshot."""

    def __init__(self) -> None:
        self._views: dict[Hashable, _View] = {}
        self._accepted_somewhere: dict[ResourceKey, dict[Hashable, Resource]] = {}
        self._parked: dict[ResourceKey, set[str]] = {}
        self._on_trial: dict[str, list[tuple[str, str]]] = {}
        self._doubted: dict[
            ResourceKey, tuple[str, set[str]]
        ] = {}  # of secrets: what content is refused, and by whom

    @property
    def rejected_contents(self) -> Mapping[ResourceKey, Collection[str]]:
        """The content hashes that are parked, by type and name."""
        return self._parked

    def rejections(self) -> tuple[RejectedContent, ...]:
        """Every park, with the accepted content that stands in for it; none of secrets, for it is written down."""
        return tuple(
            RejectedContent(
                type_url=type_url,
                name=name,
                contents=tuple(sorted(contents)),
                instead=self._accepted_somewhere.get((type_url, name), _NOWHERE).get(None),
            )
            for (type_url, name), contents in self._parked.items()
            if type_url != SECRET
        )

    def restore(self, memory: Iterable[RejectedContent]) -> None:
        """Begin with what an earlier process learned; what any proxy accepts from now on outweighs it."""
        for park in memory:
            key = (park.type_url, park.name)
            self._parked[key] = set(park.contents)
            if park.instead is not None:
                self._accepted_somewhere.setdefault(key, {}).setdefault(None, park.instead)

    def trial(self, type_url: str) -> tuple[str, str] | None:
        """The name and content hash of the suspect that is being tried, if any."""
        suspects = self._on_trial.get(type_url)
        return suspects[0] if suspects else None

    def is_rejected(self, item: Resource) -> bool:
        """Whether this content is parked, and not on trial."""
        parked = content_of(item.version) in self._parked.get(_key(item), ())
        return parked and self.trial(item.type_url) != _content(item)

    def record_ack(self, view: Hashable, resources: Iterable[Resource]) -> bool:
        """Note that a proxy of ``view`` holds these; whether that changes what is served."""
        memory = self._views.setdefault(view, _View())
        changed = False
        for item in resources:
            key = _key(item)
            if memory.accepted.get(key) is item:
                continue
            before = memory.accepted.get(key)
            if key[0] == SECRET and before is not None and before.version != item.version:
                memory.former[key] = before
            memory.accepted[key] = item
            memory.unwanted_since_s.pop(key, None)
            self._accepted_somewhere.setdefault(key, {})[_circle(view, key)] = item
            content = content_of(item.version)
            if self._doubted.get(key, ("",))[0] == content:
                del self._doubted[key]
            if content in self._parked.get(key, ()):
                self._unpark(key, content)
                changed = True
            changed = self._tried(item.type_url, (item.name, content)) or changed
        return changed

    def attribute_nack(
        self, suspects: Collection[Resource], reason: str, *, node: str = "", answers_trial: bool = True
    ) -> NackAttribution:
        """Judge a refusal of ``suspects`` by ``node``: everything in the response that was new to the proxy.

        ``answers_trial`` is false when the response went out before the current trial of its type began.
        """
        type_url = next(iter(suspects)).type_url
        if type_url == SECRET:
            return self._refused_secrets(tuple(suspects), node)
        trial = self.trial(type_url) if answers_trial else None
        if trial and (tried := [item for item in suspects if _content(item) == trial]):
            # Whatever else was in the response, the one on trial was sent because it is suspected.
            self._tried(type_url, trial)
            self._park(tried)
            return _verdict(suspects, tried, RollbackScope.EVERYONE)
        if named := [item for item in suspects if _names(reason, item.name)]:
            blamed = [item for item in named if not self._is_accepted(item)]
            self._park(blamed)
            return _verdict(suspects, blamed or named, RollbackScope.EVERYONE if blamed else RollbackScope.PEER)
        unproven = [item for item in suspects if not self._is_accepted(item)]
        if not unproven:
            return NackAttribution(at_fault=tuple(suspects), scope=RollbackScope.PEER)
        fresh = [item for item in unproven if content_of(item.version) not in self._parked.get(_key(item), ())]
        self._park(fresh)
        if len(unproven) == 1:
            return _verdict(suspects, unproven, RollbackScope.EVERYONE)
        if fresh:
            self._on_trial.setdefault(type_url, []).extend(map(_content, fresh))
        return _verdict(suspects, unproven, RollbackScope.SUSPECT)

    def _refused_secrets(self, suspects: tuple[Resource, ...], node: str) -> NackAttribution:
        unproven = [item for item in suspects if not self._is_accepted(item)]
        convicted = [item for item in unproven if len(self._doubt(item, node)) >= CONVINCING_NACKS]
        self._park(convicted)
        return _verdict(
            suspects, unproven or suspects, RollbackScope.EVERYONE if convicted else RollbackScope.PEER
        )

    def _doubt(self, item: Resource, node: str) -> Collection[str]:
        """Note that a proxy refused this; all that did."""
        key, content = _key(item), content_of(item.version)
        known, nodes = self._doubted.get(key, ("", set[str]()))
        nodes = {*nodes, node} if known == content else {node}
        self._doubted[key] = content, nodes
        return nodes

    def record_timeout(self, resources: Collection[Resource]) -> bool:
        """Take silence for a refusal of whichever of these is on trial; whether that changes what is served."""
        ended = [item for item in resources if self._tried(item.type_url, _content(item))]
        return bool(ended)

    def prune(self, desired: Iterable[Snapshot], now_s: float) -> None:
        """Forget parks that nobody asks for any more, and accepted content that nobody wants for long."""
        snapshots = list(desired)
        if not snapshots:
            return  # with nobody connected, nothing is known of what is wanted
        self._doubted = {
            key: one for key, one in self._doubted.items() if any(key[1] in each.of(key[0]) for each in snapshots)
        }
        for key in list(self._parked):
            wanted = {content_of(item.version) for one in snapshots if (item := one.of(key[0]).get(key[1]))}
            for content in self._parked[key] - wanted:
                self._unpark(key, content)
                self._tried(key[0], (key[1], content))
        for memory in self._views.values():
            for key in list(memory.accepted):
                if any(key[1] in one.of(key[0]) for one in snapshots):
                    memory.unwanted_since_s.pop(key, None)
                elif now_s - memory.unwanted_since_s.setdefault(key, now_s) > FORGET_AFTER_S:
                    del memory.accepted[key], memory.unwanted_since_s[key]
                    memory.former.pop(key, None)
                    self._accepted_somewhere.pop(key, None)

    def effective(self, view: Hashable, desired: Snapshot, refused: Mapping[str, str] = _NO_NAMES) -> Snapshot:
        """What to serve: ``desired`` itself when nothing in it is parked.

        ``refused`` are versions of secrets by name that the proxy in question refuses: parked for it alone.
        """
        parked = [
            item
            for type_url, name in self._parked
            if (item := desired.of(type_url).get(name)) and self.is_rejected(item)
        ]
        parked += [
            item
            for name, version in refused.items()
            if (item := desired.of(SECRET).get(name)) and item.version == version and item not in parked
        ]
        if not parked:
            return desired
        # Nothing is kept for a view that is only asked about.
        memory = self._views.get(view) or _View()
        served = {_key(item): item for by_name in desired.resources.values() for item in by_name.values()}
        rolled_back: dict[str, set[str]] = {}
        for item in parked:
            key = _key(item)
            rolled_back.setdefault(item.type_url, set()).add(item.name)
            refused_here = {content_of(item.version), *self._parked.get(key, ())}
            lent = self._accepted_somewhere.get(key, _NOWHERE).get(_circle(view, key))
            choices = (memory.accepted.get(key), memory.former.get(key), lent)
            instead = next((one for one in choices if one and content_of(one.version) not in refused_here), None)
            if instead is None:
                del served[key]
            else:
                served[key] = instead
        still_named = _named_by(rolled_back)
        for key, item in memory.accepted.items():
            if key[0] in still_named:
                served.setdefault(key, item)
        return snapshot(served.values(), assignments=desired.assignments, rolled_back=rolled_back)

    def forget(self, view: Hashable) -> None:
        """Drop the memory of a view that has no proxies any more."""
        self._views.pop(view, None)

    def _is_accepted(self, item: Resource) -> bool:
        key = _key(item)
        content = content_of(item.version)
        return any(
            content_of(accepted.version) == content
            for memory in self._views.values()
            if (accepted := memory.accepted.get(key))
        )

    def _park(self, items: Iterable[Resource]) -> None:
        for item in items:
            self._parked.setdefault(_key(item), set()).add(content_of(item.version))

    def _unpark(self, key: ResourceKey, content: str) -> None:
        self._parked[key].discard(content)
        if not self._parked[key]:
            del self._parked[key]

    def _tried(self, type_url: str, suspect: tuple[str, str]) -> bool:
        """End the trial of a suspect; whether it was one."""
        suspects = self._on_trial.get(type_url, [])
        if suspect not in suspects:
            return False
        suspects.remove(suspect)
        if not suspects:
            del self._on_trial[type_url]
        return True


_NOWHERE: Final[Mapping[Hashable, Resource]] = MappingProxyType({})


def _named_by(rolled_back: Collection[str]) -> Collection[str]:
    """The types of what may still be named by what is rolled back of these types."""
    if LISTENER in rolled_back or ROUTE in rolled_back:
        return (CLUSTER, ENDPOINT, SECRET)
    return (SECRET,) if CLUSTER in rolled_back else ()


def _circle(view: Hashable, key: ResourceKey) -> Hashable:
    """Whose content may stand in for a view's: None for that of all who may see everything.

    A cluster and its endpoints are one pool's, and who is served one of them may see that pool. A secret stands in
    for another only where keys may be sent, or may not, in both.
    """
    if not isinstance(view, View) or key[0] in (CLUSTER, ENDPOINT):
        return None
    return (view.allowed, view.keys) if key[0] == SECRET else view.allowed


def _key(item: Resource) -> ResourceKey:
    return item.type_url, item.name


def _content(item: Resource) -> tuple[str, str]:
    return item.name, content_of(item.version)


def _verdict(
    suspects: Collection[Resource], at_fault: Collection[Resource], scope: RollbackScope
) -> NackAttribution:
    names = {item.name for item in at_fault}
    cleared = tuple(item for item in suspects if item.name not in names)
    return NackAttribution(at_fault=tuple(at_fault), scope=scope, cleared=cleared)


def _names(reason: str, name: str) -> bool:
    """Whether a refusal names the resource, the way Envoy does.

    ``Error adding/updating cluster(s) a: ..., b: ...`` for what it could not apply; ``name: "a"`` in the text of a
    message that breaks its own constraints.
    """
    # Not an expression for each name: compiling one for each suspect of a large push takes long, and fills the
    # cache of expressions with those that nobody asks for again.
    listed = any(_LISTED.search(before) for before in _before(reason, f"{name}:"))
    return listed or any(_QUOTED.search(before) for before in _before(reason, f'"{name}"'))


def _before(reason: str, text: str) -> Iterator[str]:
    """For each time the text stands in the reason, the end of what stands before it."""
    at = reason.find(text)
    while at >= 0:
        yield reason[max(0, at - _NEAR) : at]
        at = reason.find(text, at + 1)
