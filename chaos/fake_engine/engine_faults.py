"""Faults of a fake engine, one frozen value per kind, and their effect on an arriving call.

These are settings only; the engine carries them out (closes a socket, stops the GPU). :func:`parse_engine_fault`
reads them from JSON and refuses unknown fields and values out of range.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

_STRICT = ConfigDict(extra="forbid")
Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Tokens = Annotated[int, Field(ge=0)]
HealthAnswer = Literal["ok", "fail", "slow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineErrorAfterWork:
    """The call holds its slot for the whole generation, then fails with ``status`` and ``message``.

    Use ``health_answer`` "fail" for an engine core that died under a live API process.
    """

    __pydantic_config__ = _STRICT
    kind: Literal["error_after_work"] = "error_after_work"
    status: Annotated[int, Field(ge=500, le=599)] = 500
    share: Share = 1.0
    message: str = "the simulated GPU failed at the end of its work"
    health: HealthAnswer = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShed:
    """The call is refused at once with 503; ``retry_after_s`` None omits the Retry-After header."""

    __pydantic_config__ = _STRICT
    kind: Literal["shed"] = "shed"
    retry_after_s: Annotated[int, Field(ge=0)] | None = 1
    share: Share = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHang:
    """The GPU stops: calls are accepted but never answered. With ``rank`` only that data-parallel rank does.

    ``health_answer`` "ok" is vLLM's measured behaviour: /health checks the process, not the GPU.
    """

    __pydantic_config__ = _STRICT
    kind: Literal["hang"] = "hang"
    health: HealthAnswer = "ok"
    rank: Annotated[int, Field(ge=0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHangMidStream:
    """Calls stall after ``after_tokens`` and keep their slots; shorter ones finish normally."""

    __pydantic_config__ = _STRICT
    kind: Literal["hang_mid_stream"] = "hang_mid_stream"
    after_tokens: Tokens = 4
    share: Share = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSlow:
    """Everything on the GPU takes ``factor`` times as long, also for running calls."""

    __pydantic_config__ = _STRICT
    kind: Literal["slow"] = "slow"
    factor: Positive = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKvCacheFull:
    """The KV cache is full: requests are preempted and everything takes ``factor`` times as long."""

    __pydantic_config__ = _STRICT
    kind: Literal["kv_cache_full"] = "kv_cache_full"
    factor: Positive = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePacing:
    """Tokens after the first take ``factor`` times as long, and are sent ``burst`` at a time.

    TTFT is unchanged; running calls are slowed too.
    """

    __pydantic_config__ = _STRICT
    kind: Literal["pacing"] = "pacing"
    factor: Positive = 4.0
    burst: Annotated[int, Field(ge=1)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGrayFailure:
    """Probes see a healthy engine, real requests fail.

    /health is 200 and calls for up to ``honest_tokens`` tokens, such as probes, are served. Longer ones are
    refused with ``status`` at once, so the engine looks idle and attracts more.
    """

    __pydantic_config__ = _STRICT
    kind: Literal["gray_failure"] = "gray_failure"
    status: Annotated[int, Field(ge=500, le=599)] = 500
    honest_tokens: Tokens = 1
    share: Share = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCrash:
    """The process is dead: connections are reset, new ones refused. Healing restarts it."""

    __pydantic_config__ = _STRICT
    kind: Literal["crash"] = "crash"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResetMidStream:
    """The connection is reset after ``after_tokens`` tokens, or after the last one of a shorter answer."""

    __pydantic_config__ = _STRICT
    kind: Literal["reset_mid_stream"] = "reset_mid_stream"
    after_tokens: Annotated[int, Field(ge=1)] = 3
    share: Share = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBadHealth:
    """Calls are served normally; /health is wrong: "fail" answers 503, "slow" 200 after 5 s."""

    __pydantic_config__ = _STRICT
    kind: Literal["bad_health"] = "bad_health"
    health: HealthAnswer = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDrain:
    """Running calls finish normally; new ones are refused with 503."""

    __pydantic_config__ = _STRICT
    kind: Literal["drain"] = "drain"
    health: HealthAnswer = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKvTransferStall:
    """KV caches that others compute with reach them no more; prompts are computed, and their caches stay.

    Healing frees the caches, as the engine's own time limit does in the end.
    """

    __pydantic_config__ = _STRICT
    kind: Literal["kv_transfer_stall"] = "kv_transfer_stall"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAdapterLost:
    """The engine unloads its LoRA adapters: it lists none and answers 404 for them. The model is served.

    Healing loads those of its start again; a load meanwhile counts.
    """

    __pydantic_config__ = _STRICT
    kind: Literal["adapter_lost"] = "adapter_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSigterm:
    """vLLM's behaviour on SIGTERM.

    With ``shutdown_timeout_s`` 0 (vLLM's default) the GPU process dies at once and running streams hang; otherwise
    running calls have that long to finish. Either way new calls get 500 while the port is open, /health stays 200,
    and the port closes ``listens_s`` after the work has ended.
    """

    __pydantic_config__ = _STRICT
    kind: Literal["sigterm"] = "sigterm"
    shutdown_timeout_s: Annotated[float, Field(ge=0)] = 0.0
    # vLLM 0.32: refused 0.06 s after the signal.
    listens_s: Annotated[float, Field(ge=0)] = 0.06


SteadyEngineFault = (
    EngineErrorAfterWork
    | EngineShed
    | EngineHang
    | EngineHangMidStream
    | EngineSlow
    | EnginePacing
    | EngineKvCacheFull
    | EngineKvTransferStall
    | EngineAdapterLost
    | EngineCrash
    | EngineResetMidStream
    | EngineBadHealth
    | EngineGrayFailure
    | EngineDrain
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlap:
    """``fault`` for the first ``bad_share`` of each period, healthy for the rest."""

    __pydantic_config__ = _STRICT
    fault: Annotated[SteadyEngineFault, Field(discriminator="kind")]
    kind: Literal["flap"] = "flap"
    period_s: Positive = 2.0
    bad_share: Annotated[float, Field(gt=0, lt=1)] = 0.5


EngineFault = SteadyEngineFault | EngineSigterm | EngineFlap

_FAULTS: TypeAdapter[EngineFault] = TypeAdapter(Annotated[EngineFault, Field(discriminator="kind")])


class EngineFaultError(ValueError):
    """Invalid fault; the message names the field and the problem."""


def parse_engine_fault(text: bytes | str) -> EngineFault:
    """Parse a fault such as ``{"kind": "slow", "factor": 4}``; raises EngineFaultError."""
    try:
        return _FAULTS.validate_json(text)
    except ValidationError as problem:
        lines = (f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in problem.errors())
        raise EngineFaultError("; ".join(lines)) from problem


def engine_fault_object(fault: EngineFault | None) -> Any:
    """The fault as JSON-ready values, the inverse of :func:`parse_engine_fault`; None stays None."""
    return None if fault is None else _FAULTS.dump_python(fault, mode="json")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseCall:
    """Answer at once, without the GPU."""

    status: int
    message: str
    error_type: str
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCall:
    """Run the call on the GPU, with its fault settings; all None for a healthy engine."""

    stall_after: int | None = None
    reset_after: int | None = None
    error_status: int | None = None
    error_message: str = ""


def call_treatment(fault: EngineFault | None, draw: float, tokens: int) -> RefuseCall | ServeCall:
    """Treatment of a call for ``tokens`` tokens under ``fault``; ``draw`` in [0, 1) selects the share."""
    match fault:
        case EngineShed() | EngineDrain() | EngineSigterm():
            return _refusal(fault, draw) or ServeCall()
        case EngineGrayFailure() if draw < fault.share and tokens > fault.honest_tokens:
            return RefuseCall(
                status=fault.status, message="CUDA error: misaligned address", error_type="InternalServerError"
            )
        case EngineErrorAfterWork() if draw < fault.share:
            return ServeCall(error_status=fault.status, error_message=fault.message)
        case EngineHangMidStream() if draw < fault.share:
            return ServeCall(stall_after=fault.after_tokens)
        case EngineResetMidStream() if draw < fault.share:
            return ServeCall(reset_after=fault.after_tokens)
        case _:
            return ServeCall()


def _refusal(fault: EngineShed | EngineDrain | EngineSigterm, draw: float) -> RefuseCall | None:
    match fault:
        case EngineShed():
            refuse = RefuseCall(
                status=503,
                message="The engine is currently busy and cannot accept new requests.",
                error_type="Service Unavailable",
                retry_after_s=fault.retry_after_s,
            )
            return refuse if draw < fault.share else None
        case EngineDrain():
            return RefuseCall(status=503, message="The engine is draining.", error_type="Service Unavailable")
        case EngineSigterm():
            # 500, not 503: retry policies limited to 503 miss it.
            return RefuseCall(
                status=500,
                message="cannot schedule new futures after shutdown",
                error_type="InternalServerError",
            )


def gpu_rate(fault: EngineFault | None, rank: int = 0) -> float:
    """GPU work rate of a data-parallel rank under ``fault``, 1 is healthy."""
    match fault:
        case EngineHang() if fault.rank in (None, rank):
            return 0.0
        case EngineSigterm(shutdown_timeout_s=0):
            return 0.0
        case EngineSlow() | EngineKvCacheFull():
            return 1.0 / fault.factor
        case _:
            return 1.0


def token_pace(fault: EngineFault | None) -> EnginePacing:
    """Pacing of tokens after the first under ``fault``."""
    return fault if isinstance(fault, EnginePacing) else EnginePacing(factor=1.0)


def health_answer(fault: EngineFault | None) -> HealthAnswer:
    """Answer of /health under ``fault``."""
    return (
        fault.health
        if isinstance(fault, EngineHang | EngineBadHealth | EngineDrain | EngineErrorAfterWork)
        else "ok"
    )
