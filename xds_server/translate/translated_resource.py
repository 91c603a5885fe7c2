"""One translated resource, not yet encoded."""

from dataclasses import dataclass, field

import betterproto2

from xds_server.wire.assignment import AssignmentSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class TranslatedResource:
    """A resource as an envoy-data-plane message, or as an ``AssignmentSpec`` (endpoints are encoded in chunks).

    ``origins``: ``file:line:column`` of the policies behind it, most specific first. Compared by identity:
    ``translate`` returns the same item while its inputs are unchanged, so encoders may cache bytes by it.
    """

    type_url: str
    name: str
    message: betterproto2.Message | AssignmentSpec = field(repr=False)  # may hold a private key
    origins: tuple[str, ...] = ()
