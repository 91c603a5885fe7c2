"""When an engine is taken out: because it fails, or because it is clearly slower than its peers."""

from policies.document import Spec, documented_field
from policies.quantity import Duration, ErrorStatus, Percent
from policies.resilience.mode import Mode, mode_of_part


class Breaker(Spec):
    """When an engine that fails is taken out, and for how long."""

    mode: Mode | None = mode_of_part("the breaker")
    error_rate_percent: Percent = documented_field(
        40.0,
        "Share of failed calls that ejects an engine; 0 turns it off.",
        why="the published starting point for LLM engines",
        unit="%",
    )
    window_calls: int = documented_field(
        25,
        "Calls the error rate is taken over.",
        why="the published starting point",
        unit="calls",
        ge=1,
        le=100_000,
    )
    interval: Duration = documented_field(
        5.0,
        "How often Envoy looks at the error rate.",
        why="the window tumbles with it: at this interval 25 calls are 5 calls per second and engine",
        unit="duration",
        ge=0.1,
        le=600,
    )
    consecutive_errors: int = documented_field(
        5, "Failures in a row that eject an engine at once; 0 turns it off.", unit="calls", ge=0, le=100_000
    )
    consecutive_local_errors: int = documented_field(
        2,
        "Connection failures in a row that eject an engine at once; 0 turns it off, and so does hedging.",
        why="least-request is drawn to a dead engine: it has nothing active. Two was measured best",
        unit="connections",
        ge=0,
        le=100_000,
    )
    min_calls: int = documented_field(
        8,
        "Calls of the window that must be there before the error rate counts.",
        why="an engine that fails everything is out after eight calls; fewer are too few to tell",
        unit="calls",
        ge=1,
        le=100_000,
    )
    weigh_peers: bool = documented_field(
        True,
        "Whether failures are weighed against those of the other engines: sooner out where calls to the others "
        "succeed, not at all where they fail as often.",
        why="where hardly any other call fails, three failures in a row are no chance; where all engines fail "
        "alike it is the requests, and taking out the unluckiest only costs capacity",
    )
    cooldown: Duration = documented_field(
        60.0,
        "How long an engine that fails stays out, unless it proves itself sooner; doubles with each failed trial.",
        why="the published starting point",
        unit="duration",
        ge=0.1,
        le=86400,
    )
    max_cooldown: Duration = documented_field(
        600.0, "Longest cooldown, however often trials have failed.", unit="duration", ge=0.1, le=86400
    )
    trial_calls: int = documented_field(
        5,
        "Real requests that an engine on trial answers before it counts as well again.",
        unit="calls",
        ge=1,
        le=1000,
    )
    trial_share_percent: Percent = documented_field(
        25.0, "Share of its normal traffic that an engine on trial gets.", unit="%", gt=0
    )
    local_ejection: Duration = documented_field(
        1.0,
        "How long one Envoy by itself keeps an engine out; grows by as much each time in a row, up to cooldown.",
        why="the control plane keeps out what must stay out; an ejection that outlasts the fault costs capacity",
        unit="duration",
        ge=0.1,
        le=86400,
    )
    cut_hung: bool = documented_field(
        True,
        "Whether requests that a hung engine holds are ended at once, and tried elsewhere where nothing was sent.",
        why="they hold places in the ceiling until the caller gives up; only proxies that can are told to",
    )
    capacity_floor_engines: int = documented_field(
        1, "Engines of the pool that soft evidence always leaves in.", unit="engines", ge=0, le=20_000
    )
    capacity_floor_percent: Percent = documented_field(
        50.0,
        "Share of the pool's engines that soft evidence (errors, slowness) never ejects.",
        why="half a fleet that sometimes fails serves more than none; a dead or hung engine always leaves",
        unit="%",
    )
    count_statuses: tuple[ErrorStatus, ...] = documented_field(
        (500, 502, 504),
        "HTTP statuses that count as failures; 503 and 429 are an engine shedding load, not failing.",
        max_length=32,
    )


class Straggler(Spec):
    """When an engine that is clearly slower than its peers is taken out."""

    mode: Mode | None = mode_of_part("taking out stragglers")
    enabled: bool = documented_field(True, "Whether slowness alone takes an engine out.")
    slower_than: float = documented_field(
        3.0,
        "Times slower than the median of its peers from which an engine is out.",
        why="low weights kept the 99th percentile at 6-8 s; out of the pool it fell to 1.2-3.7 s",
        ge=1.2,
        le=1000,
    )
    after: Duration = documented_field(
        1.0, "How long it must be that slow, without a break.", unit="duration", ge=0.1, le=600
    )
    min_peers: int = documented_field(
        3, "Engines with enough traffic to compare, itself included.", unit="engines", ge=2, le=20_000
    )
