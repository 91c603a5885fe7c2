"""The routing side-car in front of a simulated decode engine, as ``chaos.fake_engine.routing_sidecar`` does it.

A call first takes a slot of the prefill engine that the proxy named. Then it is the decode engine's, which fetches
the KV cache and generates the answer. An error of the prefill engine is passed on; 502 if it cannot be reached.
"""

from dataclasses import replace
from typing import Final

from chaos.simulator.simulated_clock import SimulatedClock
from chaos.simulator.simulated_engine import (
    CallRefusedError,
    EngineRequest,
    ResponseSink,
    SimulatedCall,
    SimulatedEngine,
)

_OK: Final = 200
_BAD_GATEWAY: Final = 502


def sidecar_call(
    decoder: SimulatedEngine, prefiller: SimulatedEngine, asked: EngineRequest, sink: ResponseSink
) -> "SidecarCall | None":
    """Accept a call for both engines; None if it is refused. Raises CallRefusedError if no side-car listens."""
    if not decoder.listening:
        raise CallRefusedError
    call = SidecarCall(decoder, prefiller, asked, sink)
    call.start()
    return None if call.done else call


class SidecarCall:
    """One call in a side-car; the prefill engine answers it (``ResponseSink``)."""

    def __init__(
        self, decoder: SimulatedEngine, prefiller: SimulatedEngine, asked: EngineRequest, sink: ResponseSink
    ) -> None:
        self.done = False
        self._decoder = decoder
        self._prefiller = prefiller
        self._asked = asked
        self._sink = sink
        self._status = 0
        self._prefill: SimulatedCall | None = None
        self._decode: SimulatedCall | None = None

    @property
    def _timeline(self) -> SimulatedClock:
        return self._decoder.timeline

    def start(self) -> None:
        """Ask the prefill engine for the KV cache of the prompt."""
        self._decoder.on_gone.append(self._gone)
        asked = replace(self._asked, streaming=False, max_tokens=1, remote_decode=True)
        try:
            self._prefill = self._prefiller.call(asked, self)
        except CallRefusedError:
            self._answer(_BAD_GATEWAY)

    def leave(self) -> None:
        """The caller left."""
        if self.done:
            return
        self._end()
        if self._decode is not None:
            self._decoder.leave(self._decode)
            if self._prefill is not None:
                self._prefiller.cancel_fetch(self._prefill.id)
        elif self._prefill is not None:
            self._prefiller.leave(self._prefill)

    # -- what the prefill engine answers -------------------------------------------------------------------

    def headers(self, status: int, retry_after_s: float | None = None) -> None:  # noqa: ARG002 -- it does not retry
        """Its status."""
        self._status = status

    def tokens(self, total: int) -> None:
        """Not streaming: ignored."""

    def ended(self) -> None:
        """Its answer is complete."""
        if self._prefill is None:
            self._answer(self._status)
            return
        # Not within the engine's own step.
        self._timeline.after(0.0, self._prefilled)

    def failed_inside(self) -> None:
        """Not streaming: ignored."""

    def reset(self) -> None:
        """The connection was reset."""
        self._timeline.after(0.0, lambda: self._answer(_BAD_GATEWAY))

    # -- what the decode engine does with it ---------------------------------------------------------------

    def _prefilled(self) -> None:
        if self.done or self._prefill is None:
            return
        if self._status != _OK:
            self._answer(self._status)
            return
        # From here on the decode engine answers for itself, and ends the call if it dies.
        self._decoder.on_gone.remove(self._gone)
        self._decode = self._decoder.call(self._asked, self._sink, prefilled=True)
        if self._decode is None:
            self.done = True
            return
        call = self._decode
        self._prefiller.fetch_kv(self._prefill.id, lambda arrived: self._decoder.receive_kv(call, arrived=arrived))

    def _gone(self) -> None:
        """The decode engine's process ended, and its side-car with it."""
        if not self.done:
            self._end()
            if self._prefill is not None:
                self._prefiller.leave(self._prefill)
            self._sink.reset()

    def _answer(self, status: int) -> None:
        if not self.done:
            self._end()
            self._sink.headers(status)
            self._sink.ended()

    def _end(self) -> None:
        self.done = True
        if self._gone in self._decoder.on_gone:
            self._decoder.on_gone.remove(self._gone)
