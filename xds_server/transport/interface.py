"""All that the application needs of a transport, so that a faster one can take its place."""

from typing import Protocol


class Transport(Protocol):
    """Serves the sessions of one ``Publisher``.

    For each stream of a peer it calls ``Publisher.connect``, gives ``Session.request`` what it reads, and writes
    what ``Session.poll`` returns, in order and one at a time, whenever it is woken and able to write.
    """

    async def start(self) -> int:
        """Open the port and return its number. Only call this when there is something to serve."""
        ...

    async def run(self) -> None:
        """Do the work of time until cancelled; streams are served from ``start`` on."""
        ...

    async def stop(self) -> None:
        """Close the port and end every stream; peers keep what they have and reconnect."""
        ...
