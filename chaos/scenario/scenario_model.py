"""Scenario: one rehearsal of one incident, as its author writes it in YAML.

A scenario says where engines and proxies stand, who asks for how much, what goes wrong when, and what must hold
all the same. It says nothing of policies: the same scenario judges any of them.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from chaos.faults.fault_registry import AnyFault
from policies.document import API_VERSION, Metadata, Spec, documented_field
from policies.quantity import Duration, Zone

SERVICE_TIME_S: Final = 0.5


class EngineGroupSpec(Spec):
    """Engines of one sort."""

    count: int = documented_field(..., "How many there are.", ge=1, le=1000)
    zone: Zone = documented_field("", "Where they stand; dealt out to the topology's zones in turn when absent.")
    slots: int = documented_field(
        8, "Requests each runs at once (vLLM: --max-num-seqs).", unit="requests", ge=1, le=1024
    )
    slowness: float = documented_field(
        1.0, "How many times longer than others each takes for everything.", gt=0, le=100
    )


class ProxyGroupSpec(Spec):
    """Envoys of one zone."""

    zone: Zone = documented_field("", "Where they stand; the topology's first zone when absent.")
    count: int = documented_field(1, "How many there are.", ge=1, le=16)
    demand: float = documented_field(
        1.0, "Share of all requests that each gets, relative to the others.", ge=0, le=1000
    )


class Topology(Spec):
    """The site: everything that stands before anything goes wrong."""

    zones: list[Zone] = documented_field(["a"], "Failure domains.", min_length=1, max_length=16)
    engines: list[EngineGroupSpec] = documented_field([EngineGroupSpec(count=8)], "The engines.", min_length=1)
    proxies: list[ProxyGroupSpec] = documented_field(
        [ProxyGroupSpec()], "The Envoys that callers ask, each on a loopback address of its own.", min_length=1
    )
    agents: bool = documented_field(True, "Whether an agent stands beside each engine.")
    first_token_gate: bool | None = documented_field(
        None, "Whether engines hold a stream's headers until its first token; as the pool says when absent."
    )
    engine: Literal["simulated", "vllm"] = documented_field(
        "simulated", "What the engines are: simulated ones, or real vLLM on the CPU."
    )
    service_time: Duration = documented_field(
        SERVICE_TIME_S,
        "Mean time a request holds a slot of an engine that is not slow; the policies' times are scaled to it.",
        why="short enough for dozens of requests in a few seconds on two cores",
        unit="duration",
        ge=0.05,
        le=60,
    )


class TokenRange(Spec):
    """Lengths, each between the two as likely as the next."""

    shortest: int = documented_field(..., "Shortest.", unit="tokens", ge=1, le=100_000)
    longest: int = documented_field(..., "Longest.", unit="tokens", ge=1, le=100_000)

    @model_validator(mode="after")
    def _in_order(self) -> "TokenRange":
        if self.shortest > self.longest:
            msg = f"shortest ({self.shortest}) is more than longest ({self.longest})"
            raise ValueError(msg)
        return self


class ClientRetries(Spec):
    """What callers do by themselves when they get no good answer."""

    attempts: int = documented_field(0, "Tries after the first.", ge=0, le=20)
    backoff: Duration = documented_field(0.5, "Wait before each of them.", unit="duration", ge=0, le=60)


class Surge(Spec):
    """For a while more is asked, or less."""

    at: Duration = documented_field(..., "From when on.", unit="duration", ge=0, le=3600)
    lasts: Duration = documented_field(..., "For how long.", unit="duration", gt=0, le=3600)
    factor: float = documented_field(..., "How many times the usual load.", ge=0, le=100)


class DemandShift(Spec):
    """From one moment on, proxies get other shares of the requests."""

    at: Duration = documented_field(..., "From when on.", unit="duration", ge=0, le=3600)
    demand: list[float] = documented_field(..., "The new shares, one for each Envoy in their order.", min_length=1)


class LoadSpec(Spec):
    """Who asks, and for how much. Requests leave on a schedule, whatever becomes of the earlier ones."""

    percent: float = documented_field(
        80.0, "Load as a share of what the healthy fleet can serve.", unit="percent", gt=0, le=1000
    )
    per_second: float | None = documented_field(
        None, "Requests per second, instead of percent.", unit="requests/s", gt=0, le=2000
    )
    trace: str | None = documented_field(
        None,
        "CSV file of arrivals, instead of a Poisson process; relative to the scenario file.",
        why="columns: at_s and, if wanted, streaming, prompt_tokens, output_tokens, batch",
    )
    streaming_percent: float = documented_field(0.0, "Share of requests that are streamed.", ge=0, le=100)
    batch_percent: float = documented_field(0.0, "Share of requests of the batch class.", ge=0, le=100)
    prompt_tokens: TokenRange = documented_field(TokenRange(shortest=16, longest=16), "Lengths of prompts.")
    output_tokens: TokenRange = documented_field(TokenRange(shortest=24, longest=68), "Lengths of answers.")
    deadline: Duration = documented_field(
        10.0, "Patience of a caller for the whole answer.", unit="duration", gt=0, le=600
    )
    client_retries: ClientRetries = documented_field(ClientRetries, "What callers do without a good answer.")
    surges: list[Surge] = documented_field([], "Times of more or less load.")
    turns: list[DemandShift] = documented_field([], "Times from which Envoys get other shares.")


class FaultTarget(Spec):
    """Whom a fault hits. What is said must all hold; nothing said means everything of the fault's kind."""

    zone: Zone | None = documented_field(None, "Those of this zone.")
    engine: int | None = documented_field(None, "The engine of this number, from 0.", ge=0)
    proxy: int | None = documented_field(None, "The Envoy of this number, from 0.", ge=0)
    fraction: float | None = documented_field(None, "So large a part of those that are left.", gt=0, le=1)
    count: int | None = documented_field(None, "So many of those that are left.", ge=1)
    skip: int = documented_field(0, "Leave out so many first: those that another fault of the scenario has.", ge=0)


class FaultSpec(Spec):
    """One fault on the timeline."""

    name: str = documented_field("", "Name in the report; the fault's kind and its place in the list when absent.")
    fault: AnyFault = documented_field(..., "What goes wrong: its kind and its settings.")
    target: FaultTarget = documented_field(FaultTarget, "Whom it hits.")
    at: Duration = documented_field(..., "When it begins, from the first request.", unit="duration", ge=0, le=3600)
    lasts: Duration = documented_field(
        ..., "When it is healed, from its beginning.", unit="duration", gt=0, le=3600
    )
    in_turn: bool = documented_field(
        False, "One target after another, each for its share of the time, instead of all."
    )
    pause_percent: float = documented_field(
        0.0,
        "With inTurn: share of each turn, at its end, for which the target is well again before the next is hit.",
        unit="percent",
        ge=0,
        le=95,
    )


class Hypothesis(Spec):
    """What must hold although things go wrong; what is absent is not judged.

    Requests count from the beginning of the first fault to the end; "good" is a whole answer within the deadline.
    """

    goodput_percent: float | None = documented_field(
        None, "Good answers per 100 requests, at least.", ge=0, le=100
    )
    goodput_of_possible_percent: float | None = documented_field(
        None, "Good answers per 100 that a perfect admission ceiling would give, at least.", ge=0, le=200
    )
    answer_p99: Duration | None = documented_field(
        None, "99th percentile of good whole answers, at most.", unit="duration"
    )
    first_token_p99: Duration | None = documented_field(
        None, "99th percentile of the time to the first token of good streams, at most.", unit="duration"
    )
    token_gap_p99: Duration | None = documented_field(
        None, "99th percentile of the longest silence inside a good stream, at most.", unit="duration"
    )
    amplification: float | None = documented_field(
        None, "Calls that reach engines per request that callers send, at most.", ge=1, le=100
    )
    wasted_percent: float | None = documented_field(
        None, "Slot time whose answer nobody got, per 100 of all slot time used, at most.", ge=0, le=100
    )
    wasted_gpu_seconds: float | None = documented_field(
        None, "The same in seconds, at most.", unit="slot seconds", ge=0
    )
    left_alone_within: Duration | None = documented_field(
        None, "No request goes to a bad engine later than this after it broke.", unit="duration", ge=0
    )
    back_within: Duration | None = documented_field(
        None, "A healed engine has its traffic back within this.", unit="duration", ge=0
    )
    refused_within: Duration | None = documented_field(
        None, "Who is turned away is told within this (99th percentile).", unit="duration", ge=0
    )
    cut_streams: int | None = documented_field(
        None, "Streams that began and did not end, at most; those a crash or hang took are not counted.", ge=0
    )
    floor_engines_percent: float | None = documented_field(
        None, "Share of the engines that the control plane leaves in, at least.", ge=0, le=100
    )
    idle_while_shedding_percent: float | None = documented_field(
        None, "Slot time of well engines that was idle while requests were turned away, at most.", ge=0, le=100
    )


class AbortCondition(Spec):
    """When to stop early and heal."""

    goodput_below_percent: float = documented_field(
        0.0, "Good answers per 100 that ended in the last `after`; 0 never stops.", ge=0, le=100
    )
    after: Duration = documented_field(5.0, "For how long it must be so.", unit="duration", gt=0, le=600)


class BlastRadius(Spec):
    """The most that the scenario may break; a scenario that would break more is refused before it begins."""

    engines_percent: float = documented_field(100.0, "Share of the engines that are hit at once.", ge=0, le=100)
    proxies_percent: float = documented_field(100.0, "Share of the Envoys that are hit at once.", ge=0, le=100)
    control_plane: bool = documented_field(True, "Whether the control plane may be hit.")


class ScenarioSpec(Spec):
    """The rehearsal."""

    title: str = documented_field(..., "One line.", min_length=1, max_length=200)
    incident: str = documented_field(..., "What happened, or may happen, that this rehearses.", min_length=1)
    topology: Topology = documented_field(Topology, "The site.")
    load: LoadSpec = documented_field(LoadSpec, "The requests.")
    lasts: Duration = documented_field(38.0, "How long requests arrive.", unit="duration", gt=0, le=3600)
    faults: list[FaultSpec] = documented_field([], "What goes wrong, and when.")
    hypothesis: Hypothesis = documented_field(Hypothesis, "What must hold all the same.")
    abort: AbortCondition = documented_field(AbortCondition, "When to stop early.")
    blast_radius: BlastRadius = documented_field(BlastRadius, "The most that may break.")
    seed: int = documented_field(1, "Decides arrivals, lengths and which engines a fraction picks.", ge=0)


class Scenario(Spec):
    """A scenario document."""

    api_version: Literal["switchgear.dev/v1alpha1"] = documented_field(API_VERSION, "Version of the document.")
    kind: Literal["Scenario"] = documented_field("Scenario", "Kind of the document.")
    metadata: Annotated[Metadata, Field(description="Name and labels.")]
    spec: ScenarioSpec = documented_field(..., "The rehearsal.")
