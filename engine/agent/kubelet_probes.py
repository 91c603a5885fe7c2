"""Three questions that are often taken for one: may it have traffic, would a restart help, has it started?

Readiness follows the verdict. Liveness asks for a restart, which costs minutes of capacity, so it does that only
for what a new process mends and waiting does not: a CUDA context that is broken, a core that died under a process
that lives on, a hang that lasted. Load, a full KV cache, a drain, bad weights and broken hardware are not.
"""

from dataclasses import dataclass
from typing import Final

from engine.agent.agent_config import AgentConfig
from engine.agent.agent_engine_state import EngineHealthState
from engine.report import Verdict

# What CUDA, cuBLAS, NCCL and vLLM say once a process cannot compute any more. Out-of-memory is not among them.
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
    """Yes or no, and one sentence on why."""

    yes: bool
    sentence: str


def readiness(now: EngineHealthState) -> KubeletProbeResult:
    """Whether traffic may come: tokens are known to come, and nobody said to stop.

    A degraded engine that still produces tokens counts as ready: whoever asks here knows nothing of the other
    engines, and all of them may be degraded. The control plane, which does know, takes it out while others have
    room.
    """
    if not now.findings:
        return KubeletProbeResult(yes=False, sentence="nothing is known of the engine yet")
    verdict = now.findings[0].verdict
    yes = verdict.good or (verdict is Verdict.DEGRADED and now.produces)
    return KubeletProbeResult(yes=yes, sentence=f"{verdict}: {now.findings[0].sentence}")


def startup(now: EngineHealthState, config: AgentConfig) -> KubeletProbeResult:
    """Whether this life of the engine has produced its first token, and the warm-up is over."""
    if not now.boot.first_token:
        return KubeletProbeResult(yes=False, sentence="no token from this engine process yet")
    left = now.warm_up_left(config)
    if left:
        return KubeletProbeResult(yes=False, sentence=f"{len(left)} warm-up prompts left")
    return KubeletProbeResult(yes=True, sentence="has produced its first token")


def liveness(now: EngineHealthState, config: AgentConfig, at_s: float) -> KubeletProbeResult:
    """Whether the engine's process should be left running."""
    finding = now.finding
    if finding is None or finding.verdict.good:
        return KubeletProbeResult(yes=True, sentence="no reason for a restart")
    in_vain = _in_vain(now)
    if in_vain:
        return KubeletProbeResult(yes=True, sentence=in_vain)
    bad_s = at_s - (now.not_produced_since_s if now.not_produced_since_s is not None else at_s)
    broken = _broken(now)
    if broken:
        yes = bad_s < config.restart_after_error_s
        return KubeletProbeResult(
            yes=yes, sentence=f"{broken}, for {bad_s:.1f} s (allowed {config.restart_after_error_s:g} s)"
        )
    if finding.verdict is Verdict.HUNG and config.restart_after_hung_s:
        yes = bad_s < config.restart_after_hung_s
        return KubeletProbeResult(
            yes=yes, sentence=f"{finding.sentence} (restart after {config.restart_after_hung_s:g} s)"
        )
    return KubeletProbeResult(yes=True, sentence=f"not for a restart to mend: {finding.sentence}")


def _in_vain(now: EngineHealthState) -> str:
    """Why a restart would be for nothing; empty when it might help."""
    if now.order is not None:
        return "is told to drain, and ends by that"
    if not now.boot.heard:
        return "no process is there to restart; whoever runs it starts it"
    if not now.boot.first_token:
        return "has never worked, which a restart does not change"
    return ""


def _broken(now: EngineHealthState) -> str:
    """What says that this process will not produce a token again; empty when nothing does."""
    assert now.finding is not None  # noqa: S101 -- the caller looked
    if now.finding.verdict is Verdict.DEAD and now.finding.reading == "health":
        return f"its core died and its process lives on: {now.finding.sentence}"
    answer = now.judgement.books.answer
    if answer is not None and any(words in answer.detail.lower() for words in _BROKEN_WORDS):
        return f"its CUDA context or core is broken: {answer.detail}"
    if now.gpu is not None:
        mends = [one for one in now.gpu.evidence if one.restart_mends]
        if mends:
            return f"no token since the GPU ended its context: {mends[0].sentence}"
    return ""
