"""A simulated vLLM engine. It is a fake: it simulates hardware we lack, and generates no text worth reading.

What is simulated is what a resilience layer can see of an engine: slots, queueing, time to first token, time per
token, vLLM's HTTP behaviour in health and in failure, and its metrics. ``python -m chaos.fake_engine --help``
runs a fleet of them in one process; in a test, :class:`FakeEngine` runs in the test's own event loop.
"""

from chaos.fake_engine.config import EngineConfig
from chaos.fake_engine.control import ControlServer
from chaos.fake_engine.engine import FakeEngine
from chaos.fake_engine.faults import (
    BadHealth,
    Crash,
    Drain,
    ErrorAfterWork,
    Fault,
    FaultError,
    Flap,
    GrayFailure,
    Hang,
    HangMidStream,
    KvCacheFull,
    Pacing,
    ResetMidStream,
    Shed,
    Sigterm,
    Slow,
    parse_fault,
)

__all__ = [
    "BadHealth",
    "ControlServer",
    "Crash",
    "Drain",
    "EngineConfig",
    "ErrorAfterWork",
    "FakeEngine",
    "Fault",
    "FaultError",
    "Flap",
    "GrayFailure",
    "Hang",
    "HangMidStream",
    "KvCacheFull",
    "Pacing",
    "ResetMidStream",
    "Shed",
    "Sigterm",
    "Slow",
    "parse_fault",
]
