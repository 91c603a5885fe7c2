"""A simulated vLLM engine. It needs no GPU and generates dummy text.

It simulates what a resilience layer sees of an engine: slots, queueing, TTFT, time per token, metrics, and vLLM's
HTTP behaviour when healthy and failing. ``python -m chaos.fake_engine`` runs a fleet in one process; in a test,
:class:`FakeEngine` runs in the test's event loop.
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
