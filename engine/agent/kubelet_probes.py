"""Readiness, liveness and startup of the engine.

Readiness follows the verdict. A restart costs minutes of capacity, so liveness fails only for faults that a new
process fixes and waiting does not: a broken CUDA context, a dead core in a living process, a lasting hang. Load, a
full KV cache, a drain, bad weights and broken hardware do not fail it.
"""

from dataclasses import dataclass
from typing import Final

from engine.agent.agent_config import AgentConfig
from engine.agent.agent_engine_state import EngineHealthState
from engine.report import Verdict

# Errors of CUDA, cuBLAS, NCCL and vLLM after which a process cannot compute. Out-of-memory is not one.
_BROKEN_WORDS: Final = (
    "cuda error",
    "cudaerror",
    "cublas_status",
    "illegal memory access",
    "device-side assert",
    "misaligned address",
    "unspecified launch failure",
    "nccl error",
    "enginedead",
    "engine dead",
    "enginecore encountered",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletProbeResult:
    """Answer and one sentence of reason."""

    yes: bool
    sentence: str


def readiness(now: EngineHealthState) -> KubeletProbeResult:
    """Readiness: the engine produces tokens and is not draining.

    A degraded engine that still produces tokens is ready: all engines of the pool may be degraded. The control
    plane knows, and ejects it while the capacity floor allows.
    """
    if not now.findings:
        return KubeletProbeResult(yes=False, sentence="no verdict yet")
    verdict = now.findings[0].verdict
    yes = verdict.good or (verdict is Verdict.DEGRADED and now.produces)
    return KubeletProbeResult(yes=yes, sentence=f"{verdict}: {now.findings[0].sentence}")


def startup(now: EngineHealthState, config: AgentConfig) -> KubeletProbeResult:
    """Startup: first token of this process produced and warm-up complete."""
    if not now.boot.first_token:
        return KubeletProbeResult(yes=False, sentence="no token from this engine process yet")
    left = now.warm_up_left(config)
    if left:
        return KubeletProbeResult(yes=False, sentence=f"{len(left)} warm-up prompts left")
    return KubeletProbeResult(yes=True, sentence="first token produced")


def liveness(now: EngineHealthState, config: AgentConfig, at_s: float) -> KubeletProbeResult:
    """Liveness: False if a restart would fix the engine."""
    finding = now.finding
    if finding is None or finding.verdict.good:
        return KubeletProbeResult(yes=True, sentence="no restart needed")
    if finding.verdict is Verdict.PAUSED:
        return KubeletProbeResult(yes=True, sentence=f"no restart during a pause: {finding.sentence}")
    in_vain = _in_vain(now)
    if in_vain:
        return KubeletProbeResult(yes=True, sentence=in_vain)
    bad_s = at_s - (now.not_produced_since_s if now.not_produced_since_s is not None else at_s)
    broken = _broken(now)
    if broken:
        yes = bad_s < config.restart_after_error_s
        return KubeletProbeResult(
            yes=yes, sentence=f"{broken}, for {bad_s:.1f} s (limit {config.restart_after_error_s:g} s)"
        )
    if finding.verdict is Verdict.HUNG and config.restart_after_hung_s:
        yes = bad_s < config.restart_after_hung_s
        return KubeletProbeResult(
            yes=yes, sentence=f"{finding.sentence} (restart after {config.restart_after_hung_s:g} s)"
        )
    return KubeletProbeResult(yes=True, sentence=f"a restart would not help: {finding.sentence}")


def _in_vain(now: EngineHealthState) -> str:
    """Why a restart would not help; empty if it might."""
    if now.order is not None:
        return "draining, ends anyway"
    if not now.boot.heard:
        return "no process to restart"
    if not now.boot.first_token:
        return "has never produced a token, which a restart does not change"
    return ""


def _broken(now: EngineHealthState) -> str:
    """Why this process will never produce a token again; empty if it may."""
    assert now.finding is not None  # noqa: S101 -- the caller looked
    if now.finding.verdict is Verdict.DEAD and now.finding.reading == "health":
        return f"engine core died, process still runs: {now.finding.sentence}"
    answer = now.judgement.books.answer
    if answer is not None and any(words in answer.detail.lower() for words in _BROKEN_WORDS):
        return f"CUDA context or core is broken: {answer.detail}"
    if now.gpu is not None:
        fixable = [one for one in now.gpu.evidence if one.fixed_by_restart]
        if fixable:
            return f"no token since the GPU destroyed its context: {fixable[0].sentence}"
    return ""
