"""What can be wrong with a fake engine, one frozen value per fault, and what each does to a call that arrives.

Settings only: how a fault is carried out (a socket closed, a GPU stopped) is the engine's business. Outside text
becomes one of these values in :func:`parse_fault`; unknown fields and impossible numbers are refused there.
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
    """The call takes its slot for the whole generation, and is then answered with ``status`` and ``message``.

    A core that died under a living API process is this with ``health_answer`` "fail"; a broken CUDA context says
    so.
    """

    __pydantic_config__ = _STRICT
    kind: Literal["error_after_work"] = "error_after_work"
    status: Annotated[int, Field(ge=500, le=599)] = 500
    share: Share = 1.0
    message: str = "the simulated GPU failed at the end of its work"
    health: HealthAnswer = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShed:
    """The call is refused at once with 503; ``retry_after_s`` None leaves the Retry-After header out."""

    __pydantic_config__ = _STRICT
    kind: Literal["shed"] = "shed"
    retry_after_s: Annotated[int, Field(ge=0)] | None = 1
    share: Share = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHang:
    """The GPU stops: calls are accepted and nothing comes of them. What /health says is a setting.

    ``health_answer`` "ok" is what vLLM was seen to do: /health looks at the process, not at the GPU.
    """

    __pydantic_config__ = _STRICT
    kind: Literal["hang"] = "hang"
    health: HealthAnswer = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHangMidStream:
    """A call stalls after ``after_tokens`` and keeps its slot; shorter generations end as usual."""

    __pydantic_config__ = _STRICT
    kind: Literal["hang_mid_stream"] = "hang_mid_stream"
    after_tokens: Tokens = 4
    share: Share = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSlow:
    """Everything on the GPU takes ``factor`` times as long, calls in flight included."""

    __pydantic_config__ = _STRICT
    kind: Literal["slow"] = "slow"
    factor: Positive = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKvCacheFull:
    """No room in the KV cache: requests are preempted and all takes ``factor`` times as long, but goes on."""

    __pydantic_config__ = _STRICT
    kind: Literal["kv_cache_full"] = "kv_cache_full"
    factor: Positive = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePacing:
    """Tokens after the first take ``factor`` times as long, and streams get them ``burst`` at a time.

    The time to the first token stays as it was, calls in flight are slowed too.
    """

    __pydantic_config__ = _STRICT
    kind: Literal["pacing"] = "pacing"
    factor: Positive = 4.0
    burst: Annotated[int, Field(ge=1)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGrayFailure:
    """Whoever looks sees a healthy engine, whoever works with it does not.

    /health is well and calls for up to ``honest_tokens`` tokens are served, as probes make them; longer ones are
    refused with ``status`` at once, so that the engine looks idle and attracts more of them.
    """

    __pydantic_config__ = _STRICT
    kind: Literal["gray_failure"] = "gray_failure"
    status: Annotated[int, Field(ge=500, le=599)] = 500
    honest_tokens: Tokens = 1
    share: Share = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCrash:
    """The process is gone: connections are reset, new ones refused. Healing starts it anew."""

    __pydantic_config__ = _STRICT
    kind: Literal["crash"] = "crash"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResetMidStream:
    """The connection is reset once ``after_tokens`` exist, or all of a shorter answer."""

    __pydantic_config__ = _STRICT
    kind: Literal["reset_mid_stream"] = "reset_mid_stream"
    after_tokens: Annotated[int, Field(ge=1)] = 3
    share: Share = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBadHealth:
    """Calls are served; /health is not to be trusted: "fail" answers 503, "slow" 200 after seconds."""

    __pydantic_config__ = _STRICT
    kind: Literal["bad_health"] = "bad_health"
    health: HealthAnswer = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDrain:
    """Calls in flight end as usual; new ones are refused with 503."""

    __pydantic_config__ = _STRICT
    kind: Literal["drain"] = "drain"
    health: HealthAnswer = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSigterm:
    """What vLLM does on SIGTERM.

    ``shutdown_timeout_s`` 0 (vLLM's default): the GPU process dies at once, so streams in flight hang without a
    word; otherwise calls in flight have that long to end. Both ways new calls get a 500 while the port is open,
    /health stays 200, and ``listens_s`` after the work has ended (or died) the port is closed.
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
    | EngineCrash
    | EngineResetMidStream
    | EngineBadHealth
    | EngineGrayFailure
    | EngineDrain
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlap:
    """``fault`` for ``bad_share`` of each period, healthy for the rest; a period begins bad."""

    __pydantic_config__ = _STRICT
    fault: Annotated[SteadyEngineFault, Field(discriminator="kind")]
    kind: Literal["flap"] = "flap"
    period_s: Positive = 2.0
    bad_share: Annotated[float, Field(gt=0, lt=1)] = 0.5


EngineFault = SteadyEngineFault | EngineSigterm | EngineFlap

_FAULTS: TypeAdapter[EngineFault] = TypeAdapter(Annotated[EngineFault, Field(discriminator="kind")])


class EngineFaultError(ValueError):
    """The text names no fault; the message says which field and why."""


def parse_engine_fault(text: bytes | str) -> EngineFault:
    """The fault a JSON object such as ``{"kind": "slow", "factor": 4}`` describes; FaultError otherwise."""
    try:
        return _FAULTS.validate_json(text)
    except ValidationError as problem:
        lines = (f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in problem.errors())
        raise EngineFaultError("; ".join(lines)) from problem


def engine_fault_object(fault: EngineFault | None) -> Any:
    """The fault as JSON-ready values, such that :func:`parse_fault` gives it back; None stays None."""
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
    """Give the call to the GPU, with what is to go wrong there; all None for a healthy engine."""

    stall_after: int | None = None
    reset_after: int | None = None
    error_status: int | None = None
    error_message: str = ""


def call_treatment(fault: EngineFault | None, draw: float, tokens: int) -> RefuseCall | ServeCall:
    """What happens to a call for ``tokens`` tokens that arrives under ``fault``.

    ``draw`` is uniform in [0, 1), and picks the share.
    """
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
            # 500, not 503: a retry policy that only knows 503 does not catch it.
            return RefuseCall(
                status=500,
                message="cannot schedule new futures after shutdown",
                error_type="InternalServerError",
            )


def gpu_rate(fault: EngineFault | None) -> float:
    """Work per second of the GPU under ``fault``."""
    match fault:
        case EngineHang() | EngineSigterm(shutdown_timeout_s=0):
            return 0.0
        case EngineSlow() | EngineKvCacheFull():
            return 1.0 / fault.factor
        case _:
            return 1.0


def token_pace(fault: EngineFault | None) -> EnginePacing:
    """How tokens after the first come under ``fault``."""
    return fault if isinstance(fault, EnginePacing) else EnginePacing(factor=1.0)


def health_answer(fault: EngineFault | None) -> HealthAnswer:
    """What /health says under ``fault``."""
    return (
        fault.health
        if isinstance(fault, EngineHang | EngineBadHealth | EngineDrain | EngineErrorAfterWork)
        else "ok"
    )
