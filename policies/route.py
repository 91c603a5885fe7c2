"""ModelRoute: which requests go to which pools."""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from policies.document import API_VERSION, Metadata, Spec, documented_field
from policies.quantity import IpAddress, Name, Port, Re2, Zone

ENVOYS_HEADERS: Final = "x-envoy-"
"""How headers begin that only Envoy may write. Listeners take those of callers out before a route is chosen."""

SET_BEFORE_ROUTES: Final = frozenset({"x-envoy-external-address"})
"""Of these what Envoy itself writes before it chooses a route, as seen with 1.40: where a caller connects from."""


class PriorityClass(StrEnum):
    """Who is served first when there is not enough for everyone."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class ModelChange(StrEnum):
    """Whether a caller may be served by a fallback pool of another model."""

    DISCLOSED = "disclosed"  # yes, and a response header says so
    OPT_IN = "opt-in"  # only callers who say so in a request header
    NEVER = "never"


class HeaderMatch(Spec):
    """A request header and one condition on it; ``present`` when none is given."""

    name: str = documented_field(
        ..., "Header name; case does not matter.", pattern=r"^:?[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
    )
    exact: str | None = documented_field(None, "The header has exactly this value.")
    prefix: str | None = documented_field(None, "The header starts with this.", min_length=1)
    regex: Re2 | None = documented_field(None, "The whole header matches this RE2 expression.")
    present: bool | None = documented_field(None, "The header is there (true) or is not (false).")
    invert: bool = documented_field(False, "Turn the condition round.")


class Match(Spec):
    """Conditions that must all hold."""

    path_prefix: str = documented_field("/", "Path prefix.", pattern=r"^/[^\s?#]*$")
    headers: tuple[HeaderMatch, ...] = documented_field((), "Header conditions.", max_length=32)
    model: str | None = documented_field(
        None, "Value of `model` in the JSON body, read by Envoy itself.", min_length=1, max_length=253
    )
    stream: bool | None = documented_field(
        None, "Value of `stream` in the JSON body; absent in the body counts as false."
    )


class Listener(Spec):
    """Where Envoy listens for this route."""

    port: Port = documented_field(..., "Port the Envoys listen on.")
    address: IpAddress = documented_field("0.0.0.0", "IP address the Envoys bind; :: for all of IPv4 and IPv6.")


class PoolShare(Spec):
    """A target pool and its share of the route's requests."""

    pool: Name = documented_field(..., "Name of an EnginePool.")
    weight: int = documented_field(100, "Share relative to the route's other pools.", ge=0, le=1_000_000)


class ModelRouteSpec(Spec):
    """One rule: requests that match go to these pools."""

    listener: Listener = documented_field(..., "Where Envoy listens.")
    match: Match = documented_field(Match, "Which requests; all of the listener's when absent.")
    pools: tuple[PoolShare, ...] = documented_field(..., "Target pools.", min_length=1, max_length=32)
    priority: PriorityClass = documented_field(
        PriorityClass.INTERACTIVE,
        "Priority class; batch has its own, smaller part of the admission ceiling.",
        why="an unlabelled caller is most likely a person who waits",
    )
    fallback: Name | None = documented_field(
        None,
        "Pool that takes over while a target pool has no ready engine, has only failing ones, or is full "
        "(a smaller model, say).",
    )
    model_change: ModelChange = documented_field(
        ModelChange.DISCLOSED,
        "Whether the fallback may be another model. opt-in: only for callers who send "
        "`x-switchgear-allow-model-change: true`; never: it is used only where its model is the same. Its engines "
        "are asked by their own model's name, whatever name the request has.",
        why="no caller gets another model without being told: the answer then has `x-switchgear-served-model` "
        "and `x-switchgear-fallback`, and in no other case",
    )
    side_effects: bool = documented_field(
        False,
        "Whether requests change something outside the engine; those are never tried again once sent, nor hedged, "
        "unless they carry an `Idempotency-Key`. Elsewhere a caller says so of one request by "
        "`x-switchgear-side-effects: true`, with the same exception.",
        why="a second try may run what the first has already done; before it was sent (connection refused, stream "
        "refused) any request is tried elsewhere",
    )
    allowed_regions: tuple[Annotated[Zone, Field(min_length=1)], ...] = documented_field(
        (),
        "Regions whose engines may see these requests; empty: all. Nothing else may ever send them elsewhere, no "
        "fallback, hedge, retry or lack of engines: callers then get 503 with `x-switchgear-reason`. An engine "
        "without a region is in none.",
        why="where data may go is a promise, and outweighs being answered",
        max_length=16,
    )
    max_body_bytes: int = documented_field(
        16 * 1024 * 1024,
        "Largest request body that is still matched by model and can still be retried.",
        why="Envoy's own 1 MiB drops retries of long prompts without a word",
        unit="bytes",
        ge=1024,
        le=1024 * 1024 * 1024,
    )


class ModelRoute(Spec):
    """A named routing rule."""

    api_version: Literal["switchgear.dev/v1alpha1"] = Field(API_VERSION, description="Version of the document.")
    kind: Literal["ModelRoute"] = Field("ModelRoute", description="Kind of the document.")
    metadata: Metadata = documented_field(..., "Name and labels.")
    spec: ModelRouteSpec = documented_field(..., "The rule.")
