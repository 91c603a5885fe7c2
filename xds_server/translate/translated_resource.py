"""One translated resource, not yet encoded."""

from dataclasses import dataclass, field

import betterproto2

from xds_server.wire.assignment import AssignmentSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class TranslatedResource:
    """A resource as a message of envoy-data-plane, or as an ``AssignmentSpec`` (endpoints are encoded in chunks).

    ``origins`` are the ``file:line:column`` places of the policies that produced it, most specific first. Items
    are compared by identity: ``translate`` hands out the same item while nothing it was made of has changed, and
    whoever encodes items may remember the bytes by it.
    """

    type_url: str
    name: str
    message: betterproto2.Message | AssignmentSpec = field(repr=False)  # it may hold a private key
    origins: tuple[str, ...] = ()
