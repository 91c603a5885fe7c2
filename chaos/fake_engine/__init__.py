"""A simulated vLLM engine. It is a fake: it simulates hardware we lack, and generates no text worth reading.

What is simulated is what a resilience layer can see of an engine: slots, queueing, time to first token, time per
token, vLLM's HTTP behaviour in health and in failure, and its metrics. ``python -m chaos.fake_engine --help``
runs a fleet of them in one process; in a test, :class:`FakeEngine` runs in the test's own event loop.
"""

from chaos.fake_engine.control_server import ControlServer
from chaos.fake_engine.engine_config import EngineConfig
from chaos.fake_engine.engine_faults import (
    EngineBadHealth,
    EngineCrash,
    EngineDrain,
    EngineErrorAfterWork,
    EngineFault,
    EngineFaultError,
    EngineFlap,
    EngineGrayFailure,
    EngineHang,
    EngineHangMidStream,
    EngineKvCacheFull,
    EnginePacing,
    EngineResetMidStream,
    EngineShed,
    EngineSigterm,
    EngineSlow,
    parse_engine_fault,
)
from chaos.fake_engine.fake_engine import FakeEngine

__all__ = [
    "ControlServer",
    "EngineBadHealth",
    "EngineConfig",
    "EngineCrash",
    "EngineDrain",
    "EngineErrorAfterWork",
    "EngineFault",
    "EngineFaultError",
    "EngineFlap",
    "EngineGrayFailure",
    "EngineHang",
    "EngineHangMidStream",
    "EngineKvCacheFull",
    "EnginePacing",
    "EngineResetMidStream",
    "EngineShed",
    "EngineSigterm",
    "EngineSlow",
    "FakeEngine",
    "parse_engine_fault",
]
