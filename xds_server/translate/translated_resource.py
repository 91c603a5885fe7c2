"""One translated resource, not yet encoded."""

from dataclasses import dataclass, field

import betterproto2

from xds_server.wire.assignment import AssignmentSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedPart:
    """The next ``count`` Envoy routes, of one ModelRoute, and the reply ``instead`` if a proxy refuses them.

    ``rank``: order of the ModelRoutes, before their names.
    """

    name: str
    count: int
    rank: tuple[int, ...]
    instead: betterproto2.Message
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class TranslatedResource:
    """A resource as an envoy-data-plane message, or as an ``AssignmentSpec`` (endpoints are encoded in chunks).

    ``origins``: ``file:line:column`` of the policies behind it, most specific first. Compared by identity:
    ``translate`` returns the same item while its inputs are unchanged, so encoders may cache bytes by it.
    ``parts``: of a RouteConfiguration.
    """

    type_url: str
    name: str
    message: betterproto2.Message | AssignmentSpec = field(repr=False)  # may hold a private key
    origins: tuple[str, ...] = ()
    parts: tuple[TranslatedPart, ...] = ()


TypeGroup = tuple[TranslatedResource, ...]
"""Resources of one type, in order."""
