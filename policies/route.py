"""ModelRoute: which requests go to which pools."""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from policies.document import (
    API_VERSION,
    OF_THE_KIND,
    OF_THE_NAME,
    OF_THE_VERSION,
    Metadata,
    Spec,
    documented_field,
)
from policies.fidelity import approximated, kept, lost
from policies.field_checks import CelRule, ListKeys
from policies.field_targets import FieldTargets, Xds, exported_alike
from policies.quantity import Duration, IpAddress, Name, Port, Re2, Zone

_ISTIO_HEADERS: Final = kept(
    "headers; what Istio cannot compare is added by a patch of the route", "VirtualService"
)
_GATEWAY_REGEX: Final = approximated("a regular expression, which implementations may take or refuse", "HTTPRoute")

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


_HEADER: Final = FieldTargets(
    live=Xds.RDS,
    istio=_ISTIO_HEADERS,
    gateway_api=kept("matches[].headers", "HTTPRoute"),
)


class HeaderMatch(Spec):
    """A request header and one condition on it; ``present`` when none is given."""

    name: str = documented_field(
        ..., "Header name; case does not matter.", targets=_HEADER, pattern=r"^:?[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
    )
    exact: str | None = documented_field(
        None,
        "The header has exactly this value.",
        targets=_HEADER,
    )
    prefix: str | None = documented_field(
        None,
        "The header starts with this.",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=_ISTIO_HEADERS,
            gateway_api=_GATEWAY_REGEX,
        ),
        min_length=1,
    )
    regex: Re2 | None = documented_field(
        None,
        "The whole header matches this RE2 expression.",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=_ISTIO_HEADERS,
            gateway_api=_GATEWAY_REGEX,
        ),
    )
    present: bool | None = documented_field(
        None,
        "The header is there (true) or is not (false).",
        checks=(
            CelRule(
                rule="(has(self.exact) ? 1 : 0) + (has(self.prefix) ? 1 : 0) + (has(self.regex) ? 1 : 0) + "
                "(has(self.present) ? 1 : 0) <= 1",
                message="one condition on a header at a time; write a second entry with the same name",
                code="SG040",
            ),
        ),
        targets=FieldTargets(
            live=Xds.RDS,
            istio=_ISTIO_HEADERS,
            gateway_api=approximated(
                "a regular expression that any value fits, which implementations may take or refuse", "HTTPRoute"
            ),
        ),
    )
    invert: bool = documented_field(
        False,
        "Turn the condition round.",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=approximated("withoutHeaders, which also holds where the header is absent", "VirtualService"),
            gateway_api=kept("nothing is turned round"),
        ),
    )


class Match(Spec):
    """Conditions that must all hold."""

    path_prefix: str = documented_field(
        "/",
        "Path prefix.",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("uri.prefix", "VirtualService"),
            gateway_api=kept("matches[].path", "HTTPRoute"),
        ),
        pattern=r"^/[^\s?#]*$",
    )
    headers: tuple[HeaderMatch, ...] = documented_field((), "Header conditions.", max_length=32)
    model: str | None = documented_field(
        None,
        "Value of `model` in the JSON body, read by Envoy itself.",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("any model is taken", "VirtualService"),
            gateway_api=lost(
                "the Gateway API reads no bodies: somebody before it has to set the header x-gateway-"
                "model-name, as the inference extension's body-based router does"
            ),
        ),
        min_length=1,
        max_length=253,
    )
    stream: bool | None = documented_field(
        None,
        "Value of `stream` in the JSON body; absent in the body counts as false.",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=approximated(
                "streams are known by the header x-switchgear-stream; without it a request has the "
                "limits of other requests and the longer total",
                "VirtualService",
            ),
            gateway_api=lost(
                "the Gateway API reads no bodies: the caller has to set the header x-switchgear-stream"
            ),
        ),
    )


class Listener(Spec):
    """Where Envoy listens for this route."""

    port: Port = documented_field(
        ...,
        "Port the Envoys listen on.",
        targets=FieldTargets(
            live=Xds.RDS | Xds.LDS,
            istio=kept("port of the host that callers ask for, or of the gateway", "VirtualService"),
            gateway_api=approximated("parentRefs[].port: the Gateway has to listen there", "HTTPRoute"),
        ),
    )
    address: IpAddress = documented_field(
        "0.0.0.0",
        "IP address the Envoys bind; :: for all of IPv4 and IPv6.",
        targets=FieldTargets(
            live=Xds.LDS,
            istio=kept("Istio's proxies listen at every address", "VirtualService"),
            gateway_api=kept("the Gateway says where it listens"),
        ),
    )
    receive_timeout: Duration = documented_field(
        60.0,
        "Longest time a request may take to arrive, headers and body; then 408. 0 turns it off.",
        why="without it a caller who stops in the middle of a body keeps 14 MiB of Envoy's memory without limit; "
        "60 s are enough for 14 MiB at 2 Mbit/s",
        unit="duration",
        targets=FieldTargets(
            live=Xds.LDS,
            istio=lost("Istio's listeners have no limit; set one by an EnvoyFilter of your own"),
            gateway_api=lost(
                "the Gateway's owner sets it: ClientTrafficPolicy, timeout.http.requestReceivedTimeout"
            ),
        ),
        ge=0,
        le=3600,
    )


class PoolShare(Spec):
    """A target pool and its share of the route's requests."""

    pool: Name = documented_field(
        ...,
        "Name of an EnginePool.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS | Xds.RDS | Xds.CDS,
            istio=kept("route.destination", "VirtualService"),
            gateway_api=kept("backendRefs", "HTTPRoute"),
        ),
    )
    weight: int = documented_field(
        100,
        "Share relative to the route's other pools.",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=kept("route.weight", "VirtualService"),
            gateway_api=kept("backendRefs[].weight", "HTTPRoute"),
        ),
        ge=0,
        le=1_000_000,
    )


class ModelRouteSpec(Spec):
    """One rule: requests that match go to these pools."""

    listener: Listener = documented_field(..., "Where Envoy listens.")
    match: Match = documented_field(Match, "Which requests; all of the listener's when absent.")
    pools: tuple[PoolShare, ...] = documented_field(
        ...,
        "Target pools.",
        checks=(
            ListKeys(("pool",)),
            CelRule(
                rule="self.pools.exists(one, !has(one.weight) || one.weight > 0)",
                message="at least one weight above 0, for otherwise no request could go anywhere",
                code="SG038",
                field=".pools",
            ),
        ),
        min_length=1,
        max_length=32,
    )
    priority: PriorityClass = documented_field(
        PriorityClass.INTERACTIVE,
        "Priority class; batch has its own, smaller part of the admission ceiling.",
        why="an unlabelled caller is most likely a person who waits",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=kept("every request is under the ceiling of its class", "DestinationRule"),
            gateway_api=kept("every request is under the ceiling of its class", "BackendTrafficPolicy"),
        ),
    )
    fallback: Name | None = documented_field(
        None,
        "Pool that takes over while a target pool has no ready engine, has only failing ones, or is full "
        "(a smaller model, say).",
        targets=exported_alike(Xds.EDS | Xds.RTDS | Xds.RDS | Xds.CDS, kept("there is none")),
    )
    model_change: ModelChange = documented_field(
        ModelChange.DISCLOSED,
        "Whether the fallback may be another model. opt-in: only for callers who send "
        "`x-switchgear-allow-model-change: true`; never: it is used only where its model is the same. Its engines "
        "are asked by their own model's name, whatever name the request has.",
        why="no caller gets another model without being told: the answer then has `x-switchgear-served-model` "
        "and `x-switchgear-fallback`, and in no other case",
        targets=exported_alike(Xds.RTDS | Xds.RDS, kept("without a fallback nobody gets another model")),
    )
    side_effects: bool = documented_field(
        False,
        "Whether requests change something outside the engine; those are never tried again once sent, nor hedged, "
        "unless they carry an `Idempotency-Key`. Elsewhere a caller says so of one request by "
        "`x-switchgear-side-effects: true`, with the same exception.",
        why="a second try may run what the first has already done; before it was sent (connection refused, stream "
        "refused) any request is tried elsewhere",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("routes of their own, by the same headers, without retries", "VirtualService"),
            gateway_api=approximated(
                "the header x-switchgear-side-effects of a single request is not looked at", "BackendTrafficPolicy"
            ),
        ),
    )
    allowed_regions: tuple[Annotated[Zone, Field(min_length=1)], ...] = documented_field(
        (),
        "Regions whose engines may see these requests; empty: all. Nothing else may ever send them elsewhere, no "
        "fallback, hedge, retry or lack of engines: callers then get 503 with `x-switchgear-reason`. An engine "
        "without a region is in none.",
        why="where data may go is a promise, and outweighs being answered",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS | Xds.RDS | Xds.CDS,
            istio=kept("a subset of the engines in these regions", "DestinationRule"),
            gateway_api=kept("all regions are allowed"),
        ),
        max_length=16,
    )
    max_body_bytes: int = documented_field(
        16 * 1024 * 1024,
        "Largest request body that is still matched by model and can still be retried.",
        why="Envoy's own 1 MiB drops retries of long prompts without a word",
        unit="bytes",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("request_body_buffer_limit of the route", "EnvoyFilter"),
            gateway_api=approximated(
                "requestBuffer.limit: larger requests are refused, and none of them is sent on",
                "BackendTrafficPolicy",
            ),
        ),
        ge=1024,
        le=1024 * 1024 * 1024,
    )


class ModelRoute(Spec):
    """A named routing rule."""

    api_version: Literal["switchgear.dev/v1alpha1"] = documented_field(
        API_VERSION, "Version of the document.", targets=OF_THE_VERSION
    )
    kind: Literal["ModelRoute"] = documented_field("ModelRoute", "Kind of the document.", targets=OF_THE_KIND)
    metadata: Metadata = documented_field(
        ..., "Name and labels.", targets=exported_alike(Xds.RTDS | Xds.RDS, OF_THE_NAME)
    )
    spec: ModelRouteSpec = documented_field(..., "The rule.")
