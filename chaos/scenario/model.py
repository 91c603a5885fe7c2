"""Scenario: one rehearsal of one incident, as its author writes it in YAML.

A scenario says where engines and proxies stand, who asks for how much, what goes wrong when, and what must hold
all the same. It says nothing of policies: the same scenario judges any of them.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from chaos.faults.library import AnyFault
from policies.document import API_VERSION, Metadata, Spec, described
from policies.quantity import Duration, Zone

SERVICE_TIME_S: Final = 0.5


class EngineGroup(Spec):
    """Engines of one sort."""

    count: int = described(..., "How many there are.", ge=1, le=1000)
    zone: Zone = described("", "Where they stand; dealt out to the topology's zones in turn when absent.")
    slots: int = described(8, "Requests each runs at once (vLLM: --max-num-seqs).", unit="requests", ge=1, le=1024)
    slowness: float = described(1.0, "How many times longer than others each takes for everything.", gt=0, le=100)


class ProxyGroup(Spec):
    """Envoys of one zone."""

    zone: Zone = described("", "Where they stand; the topology's first zone when absent.")
    count: int = described(1, "How many there are.", ge=1, le=16)
    demand: float = described(1.0, "Share of all requests that each gets, relative to the others.", ge=0, le=1000)


class Topology(Spec):
    """The site: everything that stands before anything goes wrong."""

    zones: list[Zone] = described(["a"], "Failure domains.", min_length=1, max_length=16)
    engines: list[EngineGroup] = described([EngineGroup(count=8)], "The engines.", min_length=1)
    proxies: list[ProxyGroup] = described(
        [ProxyGroup()], "The Envoys that callers ask, each on a loopback address of its own.", min_length=1
    )
    agents: bool = described(True, "Whether an agent stands beside each engine.")
    first_token_gate: bool | None = described(
        None, "Whether engines hold a stream's headers until its first token; as the pool says when absent."
    )
    engine: Literal["simulated", "vllm"] = described(
        "simulated", "What the engines are: simulated ones, or real vLLM on the CPU."
    )
    service_time: Duration = described(
        SERVICE_TIME_S,
        "Mean time a request holds a slot of an engine that is not slow; the policies' times are scaled to it.",
        why="short enough for dozens of requests in a few seconds on two cores",
        unit="duration",
        ge=0.05,
        le=60,
    )


class Tokens(Spec):
    """Lengths, each between the two as likely as the next."""

    shortest: int = described(..., "Shortest.", unit="tokens", ge=1, le=100_000)
    longest: int = described(..., "Longest.", unit="tokens", ge=1, le=100_000)

    @model_validator(mode="after")
    def _in_order(self) -> "Tokens":
        if self.shortest > self.longest:
            msg = f"shortest ({self.shortest}) is more than longest ({self.longest})"
            raise ValueError(msg)
        return self


class ClientRetries(Spec):
    """What callers do by themselves when they get no good answer."""

    attempts: int = described(0, "Tries after the first.", ge=0, le=20)
    backoff: Duration = described(0.5, "Wait before each of them.", unit="duration", ge=0, le=60)


class Surge(Spec):
    """For a while more is asked, or less."""

    at: Duration = described(..., "From when on.", unit="duration", ge=0, le=3600)
    lasts: Duration = described(..., "For how long.", unit="duration", gt=0, le=3600)
    factor: float = described(..., "How many times the usual load.", ge=0, le=100)


class Turn(Spec):
    """From one moment on, proxies get other shares of the requests."""

    at: Duration = described(..., "From when on.", unit="duration", ge=0, le=3600)
    demand: list[float] = described(..., "The new shares, one for each Envoy in their order.", min_length=1)


class Load(Spec):
    """Who asks, and for how much. Requests leave on a schedule, whatever becomes of the earlier ones."""

    percent: float = described(
        80.0, "Load as a share of what the healthy fleet can serve.", unit="percent", gt=0, le=1000
    )
    per_second: float | None = described(
        None, "Requests per second, instead of percent.", unit="requests/s", gt=0, le=2000
    )
    trace: str | None = described(
        None,
        "CSV file of arrivals, instead of a Poisson process; relative to the scenario file.",
        why="columns: at_s and, if wanted, streaming, prompt_tokens, output_tokens, batch",
    )
    streaming_percent: float = described(0.0, "Share of requests that are streamed.", ge=0, le=100)
    batch_percent: float = described(0.0, "Share of requests of the batch class.", ge=0, le=100)
    prompt_tokens: Tokens = described(Tokens(shortest=16, longest=16), "Lengths of prompts.")
    output_tokens: Tokens = described(Tokens(shortest=24, longest=68), "Lengths of answers.")
    deadline: Duration = described(
        10.0, "Patience of a caller for the whole answer.", unit="duration", gt=0, le=600
    )
    client_retries: ClientRetries = described(ClientRetries, "What callers do without a good answer.")
    surges: list[Surge] = described([], "Times of more or less load.")
    turns: list[Turn] = described([], "Times from which Envoys get other shares.")


class Target(Spec):
    """Whom a fault hits. What is said must all hold; nothing said means everything of the fault's kind."""

    zone: Zone | None = described(None, "Those of this zone.")
    engine: int | None = described(None, "The engine of this number, from 0.", ge=0)
    proxy: int | None = described(None, "The Envoy of this number, from 0.", ge=0)
    fraction: float | None = described(None, "So large a part of those that are left.", gt=0, le=1)
    count: int | None = described(None, "So many of those that are left.", ge=1)
    skip: int = described(0, "Leave out so many first: those that another fault of the scenario has.", ge=0)


class Strike(Spec):
    """One fault on the timeline."""

    name: str = described("", "Name in the report; the fault's kind and its place in the list when absent.")
    fault: AnyFault = described(..., "What goes wrong: its kind and its settings.")
    target: Target = described(Target, "Whom it hits.")
    at: Duration = described(..., "When it begins, from the first request.", unit="duration", ge=0, le=3600)
    lasts: Duration = described(..., "When it is healed, from its beginning.", unit="duration", gt=0, le=3600)
    in_turn: bool = described(False, "One target after another, each for its share of the time, instead of all.")
    pause_percent: float = described(
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

    goodput_percent: float | None = described(None, "Good answers per 100 requests, at least.", ge=0, le=100)
    goodput_of_possible_percent: float | None = described(
        None, "Good answers per 100 that a perfect admission ceiling would give, at least.", ge=0, le=200
    )
    answer_p99: Duration | None = described(
        None, "99th percentile of good whole answers, at most.", unit="duration"
    )
    first_token_p99: Duration | None = described(
        None, "99th percentile of the time to the first token of good streams, at most.", unit="duration"
    )
    token_gap_p99: Duration | None = described(
        None, "99th percentile of the longest silence inside a good stream, at most.", unit="duration"
    )
    amplification: float | None = described(
        None, "Calls that reach engines per request that callers send, at most.", ge=1, le=100
    )
    wasted_percent: float | None = described(
        None, "Slot time whose answer nobody got, per 100 of all slot time used, at most.", ge=0, le=100
    )
    wasted_gpu_seconds: float | None = described(None, "The same in seconds, at most.", unit="slot seconds", ge=0)
    left_alone_within: Duration | None = described(
        None, "No request goes to a bad engine later than this after it broke.", unit="duration", ge=0
    )
    back_within: Duration | None = described(
        None, "A healed engine has its traffic back within this.", unit="duration", ge=0
    )
    refused_within: Duration | None = described(
        None, "Who is turned away is told within this (99th percentile).", unit="duration", ge=0
    )
    cut_streams: int | None = described(
        None, "Streams that began and did not end, at most; those a crash or hang took are not counted.", ge=0
    )
    floor_engines_percent: float | None = described(
        None, "Share of the engines that the control plane leaves in, at least.", ge=0, le=100
    )
    idle_while_shedding_percent: float | None = described(
        None, "Slot time of well engines that was idle while requests were turned away, at most.", ge=0, le=100
    )


class Abort(Spec):
    """When to stop early and heal."""

    goodput_below_percent: float = described(
        0.0, "Good answers per 100 that ended in the last `after`; 0 never stops.", ge=0, le=100
    )
    after: Duration = described(5.0, "For how long it must be so.", unit="duration", gt=0, le=600)


class BlastRadius(Spec):
    """The most that the scenario may break; a scenario that would break more is refused before it begins."""

    engines_percent: float = described(100.0, "Share of the engines that are hit at once.", ge=0, le=100)
    proxies_percent: float = described(100.0, "Share of the Envoys that are hit at once.", ge=0, le=100)
    control_plane: bool = described(True, "Whether the control plane may be hit.")


class ScenarioSpec(Spec):
    """The rehearsal."""

    title: str = described(..., "One line.", min_length=1, max_length=200)
    incident: str = described(..., "What happened, or may happen, that this rehearses.", min_length=1)
    topology: Topology = described(Topology, "The site.")
    load: Load = described(Load, "The requests.")
    lasts: Duration = described(38.0, "How long requests arrive.", unit="duration", gt=0, le=3600)
    faults: list[Strike] = described([], "What goes wrong, and when.")
    hypothesis: Hypothesis = described(Hypothesis, "What must hold all the same.")
    abort: Abort = described(Abort, "When to stop early.")
    blast_radius: BlastRadius = described(BlastRadius, "The most that may break.")
    seed: int = described(1, "Decides arrivals, lengths and which engines a fraction picks.", ge=0)


class Scenario(Spec):
    """A scenario document."""

    api_version: Literal["switchgear.dev/v1alpha1"] = described(API_VERSION, "Version of the document.")
    kind: Literal["Scenario"] = described("Scenario", "Kind of the document.")
    metadata: Annotated[Metadata, Field(description="Name and labels.")]
    spec: ScenarioSpec = described(..., "The rehearsal.")
