"""Scenario: one incident rehearsal, written in YAML.

A scenario defines the topology, the load, the faults with their times, and the hypothesis to test. It contains no
policies, so one scenario can test any of them.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from chaos.faults.fault_registry import AnyFault
from policies.document import API_VERSION, ApiVersion, Metadata, Spec, documented_field
from policies.quantity import Duration, Zone

SERVICE_TIME_S: Final = 0.5


class EngineGroupSpec(Spec):
    """A group of identical engines."""

    count: int = documented_field(..., "Number of engines.", ge=1, le=1000)
    zone: Zone = documented_field(
        "", "Zone of the engines. Default: spread over the topology's zones round robin."
    )
    slots: int = documented_field(
        8, "Concurrent requests per engine (vLLM: --max-num-seqs).", unit="requests", ge=1, le=1024
    )
    slowness: float = documented_field(1.0, "Factor on all service times; 2 takes twice as long.", gt=0, le=100)


class RegionSpec(Spec):
    """A region: zones that fail over together."""

    name: Zone = documented_field(..., "Name of the region.", min_length=1)
    zones: list[Zone] = documented_field(..., "Zones of the region.", min_length=1, max_length=16)


class FallbackSpec(Spec):
    """A fallback pool."""

    engines: list[EngineGroupSpec] = documented_field(
        [EngineGroupSpec(count=2)], "Engines of the fallback pool.", min_length=1
    )


class ProxyGroupSpec(Spec):
    """A group of proxies in one zone."""

    zone: Zone = documented_field("", "Zone of the proxies. Default: the topology's first zone.")
    count: int = documented_field(1, "Number of proxies.", ge=1, le=16)
    demand: float = documented_field(1.0, "Relative share of requests for each proxy.", ge=0, le=1000)


class KvTransferSpec(Spec):
    """KV caches on their way from prefill engines to decode engines."""

    bytes_per_token: float = documented_field(..., "Bytes of one prompt token.", unit="bytes", gt=0)
    bytes_per_second: float = documented_field(
        ..., "Bytes that a transfer moves per second; transfers do not share it.", unit="bytes/s", gt=0
    )

    @property
    def token_s(self) -> float:
        """Time of one prompt token."""
        return self.bytes_per_token / self.bytes_per_second


class Topology(Spec):
    """The simulated site before any fault."""

    zones: list[Zone] = documented_field(["a"], "Failure domains.", min_length=1, max_length=16)
    regions: list[RegionSpec] = documented_field([], "Regions; zones of none have no region.", max_length=16)
    engines: list[EngineGroupSpec] = documented_field(
        [EngineGroupSpec(count=8)], "Engines of the pool under test.", min_length=1
    )
    fallbacks: list[FallbackSpec] = documented_field(
        [],
        "Fallback pools, in the order of the route's fallbacks; policies with fewer cannot be rehearsed.",
        max_length=8,
    )
    prefill: list[EngineGroupSpec] = documented_field(
        [],
        "Engines of the pool that prefills for the pool under test, whose engines decode behind side-cars then. A "
        "mean prompt takes a tenth of serviceTime. Policies without prefill cannot be rehearsed.",
    )
    kv_transfer: KvTransferSpec | None = documented_field(
        None, "Transfer of KV caches from the prefill pool. Default: it takes no time."
    )
    proxies: list[ProxyGroupSpec] = documented_field(
        [ProxyGroupSpec()], "The Envoy proxies, each on its own loopback address.", min_length=1
    )
    agents: bool = documented_field(True, "Run an agent next to each engine.")
    first_token_gate: bool | None = documented_field(
        None, "Whether engines hold stream headers until the first token. Default: the pool's setting."
    )
    engine: Literal["simulated", "vllm"] = documented_field(
        "simulated", "Simulated engines, or real vLLM on the CPU."
    )
    service_time: Duration = documented_field(
        SERVICE_TIME_S,
        "Mean time a request occupies a slot at slowness 1; policy durations are scaled to it.",
        why="short enough for dozens of requests within seconds on two cores",
        unit="duration",
        ge=0.05,
        le=60,
    )


class TokenRange(Spec):
    """Token counts, uniformly distributed between both limits."""

    shortest: int = documented_field(..., "Shortest.", unit="tokens", ge=1, le=100_000)
    longest: int = documented_field(..., "Longest.", unit="tokens", ge=1, le=100_000)

    @model_validator(mode="after")
    def _in_order(self) -> "TokenRange":
        if self.shortest > self.longest:
            msg = f"shortest ({self.shortest}) is more than longest ({self.longest})"
            raise ValueError(msg)
        return self


class ClientRetries(Spec):
    """Client-side retries after a failed request."""

    attempts: int = documented_field(0, "Retries per request.", ge=0, le=20)
    backoff: Duration = documented_field(0.5, "Wait before each retry.", unit="duration", ge=0, le=60)


class Surge(Spec):
    """A period of higher or lower load."""

    at: Duration = documented_field(..., "Start, from the first request.", unit="duration", ge=0, le=3600)
    lasts: Duration = documented_field(..., "Duration.", unit="duration", gt=0, le=3600)
    factor: float = documented_field(..., "Multiple of the usual load.", ge=0, le=100)


class DemandShift(Spec):
    """A change of the proxies' shares of the requests."""

    at: Duration = documented_field(..., "Start, from the first request.", unit="duration", ge=0, le=3600)
    demand: list[float] = documented_field(
        ..., "New relative shares, one per proxy in topology order.", min_length=1
    )


class CallerGroup(Spec):
    """Some of the callers: their share of the requests, how large they are, their quota and their deadline."""

    name: str = documented_field(
        ...,
        "Name in the report.",
        min_length=1,
        max_length=63,
    )
    demand: float = documented_field(1.0, "Relative share of the requests.", gt=0, le=1000)
    times_quota: float | None = documented_field(
        None,
        "How many times its quota this tenant asks for: its quota becomes its usual rate divided by this. Groups "
        "with it are the first named tenants of the policies, in their order, whatever their names are there.",
        gt=0,
        le=1000,
    )
    unit: Literal["requests", "tokens"] = documented_field(
        "requests", "Which quota of the tenant is tested; the other one is set to twice what the tenant asks for."
    )
    times_share: float | None = documented_field(
        None,
        "How many times its equal share of the pool this tenant asks for, without a quota: at most 1, or more. "
        "Groups with it are the first named tenants of the policies, like those with a timesQuota.",
        gt=0,
        le=1000,
    )
    begins: Duration = documented_field(
        0.0, "When the group begins, from the first request of the load.", unit="duration", ge=0, le=3600
    )
    times_service: float | None = documented_field(
        None,
        "Deadline that each request states, in mean service times, in the header that the policies name.",
        gt=0,
        le=1000,
    )
    times_tokens: float | None = documented_field(
        None,
        "How many times as many tokens its prompts and answers have as those of the load. `tokensAbove` of the "
        "routes becomes a value between the two.",
        ge=2,
        le=1000,
    )


HOPELESS_BELOW: Final = 0.5
"""Deadlines below this many mean service times are shorter than any answer of a load with usual lengths."""


def is_above_quota(group: CallerGroup) -> bool:
    """Whether the group asks for more than its quota."""
    return group.times_quota is not None and group.times_quota > 1.0


def is_above_share(group: CallerGroup) -> bool:
    """Whether the group asks for more than its share of the pool."""
    return group.times_share is not None and group.times_share > 1.0


def is_large(group: CallerGroup) -> bool:
    """Whether the group's requests are larger than those of the others."""
    return group.times_tokens is not None


def is_late_burden(group: CallerGroup) -> bool:
    """Whether the group asks for more than its share, or for more per request, but not from the beginning."""
    return (is_above_share(group) or is_large(group)) and group.begins > 0


def is_hopeless(group: CallerGroup) -> bool:
    """Whether no answer can make the group's deadline."""
    return group.times_service is not None and group.times_service < HOPELESS_BELOW


def is_served(group: CallerGroup) -> bool:
    """Whether the group must lose nothing: within its quota and share, of usual size, with time for an answer."""
    in_time = group.times_service is None or group.times_service >= 1.0
    return in_time and not (is_above_quota(group) or is_above_share(group) or is_large(group))


class ConversationSpec(Spec):
    """Requests are turns of conversations; engines have a prefix cache then."""

    count: int = documented_field(32, "Conversations at a time.", ge=1, le=10_000)
    turns: int = documented_field(
        6, "Turns of each, before another conversation takes its place; each adds promptTokens.", ge=1, le=1000
    )
    hot_percent: float = documented_field(
        0.0,
        "Share of the requests that all have one and the same prompt, as long as a whole conversation.",
        unit="percent",
        ge=0,
        le=100,
    )

    @property
    def mean_turns(self) -> float:
        """Turns in a mean prompt."""
        hot = self.hot_percent / 100
        return hot * self.turns + (1 - hot) * (self.turns + 1) / 2


class LoadSpec(Spec):
    """The offered load. It is open loop: requests leave on schedule, whether or not earlier ones finished."""

    percent: float = documented_field(
        80.0, "Load as a share of the healthy fleet's capacity.", unit="percent", gt=0, le=1000
    )
    per_second: float | None = documented_field(
        None, "Requests per second; replaces percent.", unit="requests/s", gt=0, le=2000
    )
    trace: str | None = documented_field(
        None,
        "CSV file of arrivals, relative to the scenario file; replaces Poisson arrivals.",
        why="columns: at_s; optional: streaming, prompt_tokens, output_tokens, batch",
    )
    streaming_percent: float = documented_field(0.0, "Share of streaming requests.", ge=0, le=100)
    batch_percent: float = documented_field(0.0, "Share of batch-class requests.", ge=0, le=100)
    prompt_tokens: TokenRange = documented_field(TokenRange(shortest=16, longest=16), "Prompt lengths.")
    output_tokens: TokenRange = documented_field(TokenRange(shortest=24, longest=68), "Answer lengths.")
    deadline: Duration = documented_field(
        10.0, "Caller's deadline for the whole answer.", unit="duration", gt=0, le=600
    )
    client_retries: ClientRetries = documented_field(ClientRetries, "Client-side retries after a failed request.")
    surges: list[Surge] = documented_field([], "Periods of higher or lower load.")
    turns: list[DemandShift] = documented_field([], "Changes of the proxies' shares.")
    callers: list[CallerGroup] = documented_field(
        [],
        "Groups of callers. Without a timesQuota or timesShare the lab leaves out the policies' tenants, "
        "without a timesService their deadline.",
        max_length=16,
    )
    adapter: str | None = documented_field(
        None,
        "LoRA adapter that all requests ask for, and that the engines of the pool under test have from the start. "
        "Routes of the policies to this pool become routes to it. Default: requests ask for the model.",
        min_length=1,
        max_length=253,
    )
    conversations: ConversationSpec | None = documented_field(
        None,
        "Requests are turns of conversations, with prompts that begin like those before. Callers state their "
        "conversation where the policies' affinity expects it. Default: prompts have nothing in common, and "
        "engines no prefix cache.",
    )

    @property
    def tenants(self) -> list[CallerGroup]:
        """Groups that are tenants."""
        return [one for one in self.callers if one.times_quota is not None or one.times_share is not None]

    @property
    def large(self) -> frozenset[str]:
        """Names of the groups whose requests are large."""
        return frozenset(one.name for one in self.callers if is_large(one))

    @property
    def largest_times(self) -> float:
        """How many times the tokens of the load the largest group's requests have."""
        return max((one.times_tokens or 1.0 for one in self.callers), default=1.0)

    def rate_of(self, group: CallerGroup, rate_per_s: float) -> float:
        """Requests per second of one group of a load with this rate."""
        return rate_per_s * group.demand / sum(one.demand for one in self.callers)


class FaultTarget(Spec):
    """Targets of a fault. All fields must match.

    Without any, the fault hits every target of its kind; engines are those of the pool under test.
    """

    zone: Zone | None = documented_field(None, "Only targets in this zone.")
    region: Zone | None = documented_field(None, "Only targets in this region.")
    fallback: int | None = documented_field(
        None, "Engines of this fallback pool, from 0, instead of those of the pool under test.", ge=0
    )
    stage: Literal["prefill"] | None = documented_field(
        None, "Engines of the prefill pool, instead of those of the pool under test."
    )
    engine: int | None = documented_field(None, "Engine index within its pool, from 0.", ge=0)
    proxy: int | None = documented_field(None, "Proxy index, from 0.", ge=0)
    fraction: float | None = documented_field(None, "Fraction of the matching targets.", gt=0, le=1)
    count: int | None = documented_field(None, "Number of the matching targets.", ge=1)
    skip: int = documented_field(
        0, "Number of matching targets to skip first, e.g. those hit by another fault.", ge=0
    )


class FaultSpec(Spec):
    """One fault on the timeline."""

    name: str = documented_field("", "Name in the report. Default: the fault's kind and its index in the list.")
    fault: AnyFault = documented_field(..., "Kind and settings of the fault.")
    target: FaultTarget = documented_field(FaultTarget, "Targets to hit.")
    at: Duration = documented_field(..., "Start, from the first request.", unit="duration", ge=0, le=3600)
    lasts: Duration = documented_field(..., "Time until it is healed.", unit="duration", gt=0, le=3600)
    in_turn: bool = documented_field(False, "Hit targets one after another, each for an equal share of the time.")
    pause_percent: float = documented_field(
        0.0,
        "With inTurn: share of each turn left to recover before the next target is hit.",
        unit="percent",
        ge=0,
        le=95,
    )


class Hypothesis(Spec):
    """Limits that must hold despite the faults; absent fields are not checked.

    Requests count from the start of the first fault to the end. "Good" means a complete answer within the
    deadline.
    """

    goodput_percent: float | None = documented_field(None, "Minimum good answers per 100 requests.", ge=0, le=100)
    goodput_of_possible_percent: float | None = documented_field(
        None, "Minimum good answers per 100 that a perfect admission limit would allow.", ge=0, le=200
    )
    caller_goodput_percent: float | None = documented_field(
        None,
        "Minimum good answers per 100 requests of each group of callers within its quota and share, and without a "
        "deadline below the mean service time.",
        ge=0,
        le=100,
    )
    caller_p99_times: float | None = documented_field(
        None,
        "Maximum p99 of the total time of good answers of such groups after a group above its share, or with "
        "larger requests, began, over their p99 before.",
        ge=1,
        le=100,
    )
    caller_first_token_times: float | None = documented_field(
        None,
        "The same of the time to the first token (TTFT) of their good streams.",
        ge=1,
        le=100,
    )
    hopeless_refused_percent: float | None = documented_field(
        None,
        "Minimum requests refused at once for their deadline, per 100 of groups with one below half of the mean "
        "service time.",
        ge=0,
        le=100,
    )
    quota_error_percent: float | None = documented_field(
        None,
        "Maximum deviation from its quota of what each tenant above it was admitted.",
        unit="percent",
        ge=0,
        le=100,
    )
    prefilled_remotely_percent: float | None = documented_field(
        None, "Minimum good answers whose prompt an engine of the prefill pool computed, per 100.", ge=0, le=100
    )
    prefix_hit_percent: float | None = documented_field(
        None, "Minimum prompt tokens that engines found in their prefix caches, per 100.", ge=0, le=100
    )
    largest_share_times: float | None = documented_field(
        None, "Maximum requests of one engine, over its share by slots.", ge=1, le=100
    )
    answer_p99: Duration | None = documented_field(
        None, "Maximum p99 of the total time of good answers.", unit="duration"
    )
    first_token_p99: Duration | None = documented_field(
        None, "Maximum p99 of the time to first token (TTFT) of good streams.", unit="duration"
    )
    token_gap_p99: Duration | None = documented_field(
        None, "Maximum p99 of the longest token gap within a good stream.", unit="duration"
    )
    amplification: float | None = documented_field(
        None, "Maximum calls to engines per caller request.", ge=1, le=100
    )
    wasted_percent: float | None = documented_field(
        None, "Maximum share of used slot time whose answer reached no caller.", ge=0, le=100
    )
    wasted_gpu_seconds: float | None = documented_field(
        None, "Maximum slot time whose answer reached no caller.", unit="slot seconds", ge=0
    )
    left_alone_within: Duration | None = documented_field(
        None, "Time limit for the last request to a broken engine.", unit="duration", ge=0
    )
    back_within: Duration | None = documented_field(
        None, "Time limit for a healed engine to get its traffic back.", unit="duration", ge=0
    )
    refused_within: Duration | None = documented_field(
        None, "Maximum p99 of the time to refuse a request.", unit="duration", ge=0
    )
    cut_streams: int | None = documented_field(
        None, "Maximum streams cut after they began, not counting those lost to a crash or hang.", ge=0
    )
    floor_engines_percent: float | None = documented_field(
        None, "Minimum share of engines that the control plane keeps in rotation.", ge=0, le=100
    )
    idle_while_shedding_percent: float | None = documented_field(
        None, "Maximum share of healthy engines' slot time idle while requests were refused.", ge=0, le=100
    )


class AbortCondition(Spec):
    """Condition to stop early and heal."""

    goodput_below_percent: float = documented_field(
        0.0,
        "Stop below this many good answers per 100 that ended in the last `after`; 0 never stops.",
        ge=0,
        le=100,
    )
    after: Duration = documented_field(
        5.0, "How long goodput must stay below the limit.", unit="duration", gt=0, le=600
    )


class BlastRadius(Spec):
    """Limits on what the scenario may break. A scenario that exceeds them is refused before it starts."""

    engines_percent: float = documented_field(100.0, "Maximum share of engines hit at once.", ge=0, le=100)
    proxies_percent: float = documented_field(100.0, "Maximum share of proxies hit at once.", ge=0, le=100)
    control_plane: bool = documented_field(True, "Whether the control plane may be hit.")


class ScenarioSpec(Spec):
    """The incident rehearsal."""

    title: str = documented_field(..., "One-line title.", min_length=1, max_length=200)
    incident: str = documented_field(..., "The incident that this rehearses.", min_length=1)
    topology: Topology = documented_field(Topology, "Engines, proxies and zones.")
    load: LoadSpec = documented_field(LoadSpec, "The offered load.")
    lasts: Duration = documented_field(38.0, "How long requests arrive.", unit="duration", gt=0, le=3600)
    faults: list[FaultSpec] = documented_field([], "Faults with their times.")
    hypothesis: Hypothesis = documented_field(Hypothesis, "Limits that must hold despite the faults.")
    abort: AbortCondition = documented_field(AbortCondition, "Condition to stop early.")
    blast_radius: BlastRadius = documented_field(BlastRadius, "Limits on what may break.")
    seed: int = documented_field(
        1, "Random seed for arrivals, lengths and the engines that a fraction picks.", ge=0
    )


class Scenario(Spec):
    """A scenario document."""

    api_version: ApiVersion = documented_field(API_VERSION, "Version of the document.")
    kind: Literal["Scenario"] = documented_field("Scenario", "Kind of the document.")
    metadata: Annotated[Metadata, Field(description="Name and labels.")]
    spec: ScenarioSpec = documented_field(..., "The incident rehearsal.")
