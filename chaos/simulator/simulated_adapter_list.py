"""The list of an engine's adapters, as agents and the prober read it."""

from chaos.simulator.simulated_engine import SimulatedEngine
from engine.adapter_list import ADAPTERS_INTERVAL_S


class SimulatedAdapterList:
    """Reads the list each ``ADAPTERS_INTERVAL_S``, and at once from a new process."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._boot_s: float | None = None
        self._due_at_s = float("-inf")
        self._known: tuple[str, ...] | None = None

    def read(self, now_s: float) -> tuple[str, ...] | None:
        """The last list; None before the first, and for engines whose adapters no caller asks for."""
        engine = self._engine
        if not engine.answers:
            return self._known
        if engine.boot != self._boot_s or now_s >= self._due_at_s:
            self._boot_s, self._due_at_s = engine.boot, now_s + ADAPTERS_INTERVAL_S
            self._known = engine.adapters
        return self._known
