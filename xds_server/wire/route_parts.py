"""The routes inside an encoded RouteConfiguration, so that some can be replaced without decoding any.

Source: envoy/config/route/v3/route.proto, route_components.proto (field numbers)
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from xds_server.wire.field_spans import field_spans
from xds_server.wire.varint import delimited

_VIRTUAL_HOSTS: Final = 2
_ROUTES: Final = 3


class RouteFrame(NamedTuple):
    """A RouteConfiguration with one virtual host, without its routes: fields before and after them."""

    before: bytes
    host_before: bytes
    host_after: bytes
    after: bytes

    def filled(self, routes: Iterable[bytes]) -> bytes:
        """The RouteConfiguration with these routes, each as an encoded field of the virtual host."""
        host = b"".join((self.host_before, *routes, self.host_after))
        return b"".join((self.before, delimited(_VIRTUAL_HOSTS, host), self.after))


def split_routes(value: bytes, counts: Sequence[int]) -> tuple[RouteFrame, tuple[bytes, ...]]:
    """Frame and consecutive groups of routes, ``counts`` in each; further routes belong to the frame.

    ``value`` has one virtual host, and fields in the order of their numbers.
    """
    (host_at, host_end, host_from) = next(
        (at, end, start) for number, at, start, end in field_spans(value) if number == _VIRTUAL_HOSTS
    )
    host = value[host_from:host_end]
    spans = [(at, end) for number, at, _, end in field_spans(host) if number == _ROUTES]
    groups, first = [], 0
    for count in counts:
        mine = spans[first : first + count]
        groups.append(host[mine[0][0] : mine[-1][1]] if mine else b"")
        first += count
    begin = spans[0][0] if spans else len(host)
    rest = spans[first][0] if first < len(spans) else spans[-1][1] if spans else len(host)
    frame = RouteFrame(
        before=value[:host_at], host_before=host[:begin], host_after=host[rest:], after=value[host_end:]
    )
    return frame, tuple(groups)


def route_field(route: bytes) -> bytes:
    """An encoded Route as a field of a virtual host."""
    return delimited(_ROUTES, route)
