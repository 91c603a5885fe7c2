"""Memory for the resource names that proxies sent, limited per host."""

from typing import Final

from xds_server.xds import StreamError, StreamErrorKind

MAX_BYTES_OF_HOST: Final = 128 * 1024 * 1024
"""4 096 proxies with 150 names each, or 50 streams with as many names as one may have."""


class HeldNames:
    """Estimated bytes by host."""

    def __init__(self) -> None:
        self._by_host: dict[str, int] = {}

    def change(self, host: str, before: int, now: int) -> None:
        """A stream holds ``now`` bytes instead of ``before``; ``StreamError`` if its host then holds too many."""
        total = self._by_host.get(host, 0) + now - before
        if now > before and total > MAX_BYTES_OF_HOST:
            raise StreamError(
                f"over the limit of {MAX_BYTES_OF_HOST} bytes for resource names per host", StreamErrorKind.NAMES
            )
        if total:
            self._by_host[host] = total
        else:
            self._by_host.pop(host, None)
