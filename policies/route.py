"""ModelRoute: which requests go to which pools."""

import re
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from policies.affinity import Affinity
from policies.document import (
    API_VERSION,
    OF_THE_KIND,
    OF_THE_NAME,
    OF_THE_VERSION,
    ApiVersion,
    Metadata,
    Spec,
    documented_field,
)
from policies.fidelity import approximated, kept, lost
from policies.field_checks import CelRule, ListKeys
from policies.field_targets import FieldTargets, Xds, exported_alike
from policies.listener import Listener
from policies.objectives import Objectives
from policies.quantity import Name, Re2, Zone
from policies.remote_prefill import RemotePrefill
from policies.static_answer import StaticAnswer

_ISTIO_HEADERS: Final = kept(
    "headers; what Istio cannot compare is added by a patch of the route", "VirtualService"
)
_GATEWAY_REGEX: Final = approximated("a regular expression; support depends on the implementation", "HTTPRoute")

ENVOYS_HEADERS: Final = "x-envoy-"
"""Prefix of headers that only Envoy may write; listeners remove them from requests before a route is chosen."""

SET_BEFORE_ROUTES: Final = frozenset({"x-envoy-external-address"})
"""Headers that Envoy itself writes before it chooses a route (1.40): the address of the caller."""


MODEL_HEADER: Final = "x-switchgear-model"
STREAM_HEADER: Final = "x-switchgear-stream"
MAX_TOKENS_HEADER: Final = "x-switchgear-max-tokens"
STATED_HEADERS: Final = (MODEL_HEADER, STREAM_HEADER, MAX_TOKENS_HEADER)
"""Headers that state fields of the body: of listeners with ``requestFields: headers``, and of exports."""

_STATED_MODEL: Final = re.compile(r"[!-+\--~]+( [!-+\--~]+)*")
"""Printable ASCII with single spaces and without a comma, at which proxies may split or join headers."""


def can_be_stated(model: str) -> bool:
    """Whether a header can carry the name of the model."""
    return _STATED_MODEL.fullmatch(model) is not None


def is_removed_header(name: str) -> bool:
    """Whether listeners remove this header from requests: Envoy's own, and names with an underscore."""
    lower = name.lower()
    return "_" in lower or (lower.startswith(ENVOYS_HEADERS) and lower not in SET_BEFORE_ROUTES)


class PriorityClass(StrEnum):
    """Priority under overload."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class ModelChange(StrEnum):
    """Whether fallback pools with another model may serve a caller."""

    DISCLOSED = "disclosed"  # yes, named in a response header
    OPT_IN = "opt-in"  # only callers with a request header
    NEVER = "never"


_HEADER: Final = FieldTargets(
    live=Xds.RDS,
    istio=_ISTIO_HEADERS,
    gateway_api=kept("matches[].headers", "HTTPRoute"),
)


class HeaderMatch(Spec):
    """A request header and one condition; default: present."""

    name: str = documented_field(
        ..., "Header name; case-insensitive.", targets=_HEADER, pattern=r"^:?[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
    )
    exact: str | None = documented_field(
        None,
        "Exact value of the header.",
        targets=_HEADER,
    )
    prefix: str | None = documented_field(
        None,
        "Prefix of the header.",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=_ISTIO_HEADERS,
            gateway_api=_GATEWAY_REGEX,
        ),
        min_length=1,
    )
    regex: Re2 | None = documented_field(
        None,
        "RE2 expression that matches the whole header.",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=_ISTIO_HEADERS,
            gateway_api=_GATEWAY_REGEX,
        ),
    )
    present: bool | None = documented_field(
        None,
        "Header is present (true) or absent (false).",
        checks=(
            CelRule(
                rule="(has(self.exact) ? 1 : 0) + (has(self.prefix) ? 1 : 0) + (has(self.regex) ? 1 : 0) + "
                "(has(self.present) ? 1 : 0) <= 1",
                message="one condition for each entry; add a second entry with the same name",
                code="SG040",
            ),
        ),
        targets=FieldTargets(
            live=Xds.RDS,
            istio=_ISTIO_HEADERS,
            gateway_api=approximated(
                "a regular expression that matches any value; support depends on the implementation",
                "HTTPRoute",
            ),
        ),
    )
    invert: bool = documented_field(
        False,
        "Invert the condition.",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=approximated("withoutHeaders, which also matches an absent header", "VirtualService"),
            gateway_api=kept("nothing is inverted"),
        ),
    )


class Match(Spec):
    """Conditions, all of which must match."""

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
        "Value of `model` in the JSON body, read by Envoy itself, or of the header `x-switchgear-model` "
        "(`listener.requestFields`).",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("any model matches", "VirtualService"),
            gateway_api=lost(
                "the Gateway API reads no bodies: a proxy before it must set the header x-gateway-"
                "model-name, as the inference extension's body-based router does"
            ),
        ),
        min_length=1,
        max_length=253,
    )
    stream: bool | None = documented_field(
        None,
        "Value of `stream` in the JSON body, or of the header `x-switchgear-stream` (`listener.requestFields`); "
        "absent counts as false.",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=approximated(
                "the header x-switchgear-stream marks streams; without it a request has the limits of "
                "non-streaming requests and the longer total",
                "VirtualService",
            ),
            gateway_api=lost(
                "the Gateway API reads no bodies: the caller must set the header x-switchgear-stream"
            ),
        ),
    )
    tokens_above: int | None = documented_field(
        None,
        "Only requests that ask for more tokens than this, prompt and answers together, as Envoy estimates them "
        "from the body: its bytes by `tenants.bytesPerToken`, and `max_tokens` or `tenants.answerTokens`.",
        why="a route of their own gives long requests their own pool, class, time limits and retries",
        unit="tokens",
        targets=exported_alike(
            Xds.RDS | Xds.LDS,
            lost(
                "the route is left out: nothing there estimates tokens. Its requests match the routes without it"
            ),
        ),
        ge=1,
        le=100_000_000,
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


_CANARY: Final = FieldTargets(
    live=Xds.EDS | Xds.RDS,
    istio=lost("Istio does not rewrite the model in requests: the adapter of the route gets all of them"),
    gateway_api=lost("gateways do not rewrite the model in requests: the adapter of the route gets all of them"),
)


class AdapterCanary(Spec):
    """Another adapter that gets a share of the requests."""

    name: str = documented_field(
        ...,
        "Name of the adapter, as engines list it at `/v1/models`. Requests get its name as `model`, answers state "
        "it in `x-switchgear-served-model`.",
        targets=_CANARY,
        min_length=1,
        max_length=253,
    )
    percent: float = documented_field(
        ...,
        "Its share of the requests. While a pool of the route has no engine in rotation with it, it gets none.",
        unit="percent",
        targets=_CANARY,
        gt=0,
        le=100,
    )


class ModelRouteSpec(Spec):
    """A routing rule: matching requests go to these pools."""

    listener: Listener = documented_field(..., "Listener of Envoy.")
    match: Match = documented_field(Match, "Matching requests; default: all of the listener.")
    pools: tuple[PoolShare, ...] = documented_field(
        ...,
        "Target pools.",
        checks=(
            ListKeys(("pool",)),
            CelRule(
                rule="self.pools.exists(one, !has(one.weight) || one.weight > 0)",
                message="set at least one weight above 0",
                code="SG038",
                field=".pools",
            ),
        ),
        min_length=1,
        max_length=32,
    )
    priority: PriorityClass = documented_field(
        PriorityClass.INTERACTIVE,
        "Priority class; batch has its own, smaller share of the admission limit.",
        why="an unlabelled caller is probably interactive",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=kept("every request is under the limit of its class", "DestinationRule"),
            gateway_api=kept("every request is under the limit of its class", "BackendTrafficPolicy"),
        ),
    )
    fallbacks: tuple[Name, ...] = documented_field(
        (),
        "Pools that take over, in this order, while a target pool has no ready engine, only failing ones, or is "
        "full (a smaller model, say). Where one cannot serve either, the next does.",
        why="an outage or overload may reach the first fallback too",
        checks=(
            CelRule(
                rule="!has(self.fallbacks) || "
                "self.fallbacks.all(one, self.fallbacks.exists_one(other, other == one))",
                message="name each pool once",
                code="SG039",
                field=".fallbacks",
            ),
            CelRule(
                rule="!has(self.fallbacks) || !self.fallbacks.exists(one, self.pools.exists(target, "
                "target.pool == one && (!has(target.weight) || target.weight > 0)))",
                message="a target cannot be its own fallback",
                code="SG039",
                field=".fallbacks",
            ),
        ),
        targets=exported_alike(Xds.EDS | Xds.RTDS | Xds.RDS | Xds.CDS, kept("there is none")),
        max_length=8,
    )
    model_change: ModelChange = documented_field(
        ModelChange.DISCLOSED,
        "Whether fallbacks may serve another model. opt-in: only for callers that send "
        "`x-switchgear-allow-model-change: true`; never: only fallbacks with the same model are used. Engines "
        "always get the name of their own model.",
        why="no caller gets another model without notice: only then the answer has `x-switchgear-served-model` "
        "and "
        "`x-switchgear-fallback`",
        targets=exported_alike(Xds.RTDS | Xds.RDS, kept("without a fallback there is no other model")),
    )
    side_effects: bool = documented_field(
        False,
        "Requests have side effects: never retried once sent, nor hedged, unless they have an `Idempotency-Key`. "
        "On other routes a caller marks single requests with "
        "`x-switchgear-side-effects: true`, with the same exception.",
        why="a retry may repeat side effects; a request that was never sent (connection or stream refused) is "
        "always "
        "retried",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("routes of their own, by the same headers, without retries", "VirtualService"),
            gateway_api=approximated(
                "the header x-switchgear-side-effects of a single request is ignored", "BackendTrafficPolicy"
            ),
        ),
    )
    public: bool = documented_field(
        False,
        "Serve requests without the token and the authorization that the listener requires.",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=lost("exclude its paths in your AuthorizationPolicy"),
            gateway_api=lost("attach your SecurityPolicy to the other HTTPRoutes only"),
        ),
    )
    allowed_regions: tuple[Annotated[Zone, Field(min_length=1)], ...] = documented_field(
        (),
        "Regions whose engines may receive these requests; empty: all. Fallbacks, hedges and retries stay within "
        "them; without engines there, callers get 503 with `x-switchgear-reason`. An engine without a region "
        "is in none.",
        why="data residency takes precedence over an answer",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS | Xds.RDS | Xds.CDS,
            istio=kept("a subset of the engines in these regions", "DestinationRule"),
            gateway_api=kept("all regions are allowed"),
        ),
        max_length=16,
    )
    adapter: bool = documented_field(
        False,
        "`match.model` is a LoRA adapter: send these requests only to engines that list it at `/v1/models`. "
        "Without one in rotation, fallbacks serve them, or callers get 503 with `x-switchgear-reason`.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS | Xds.RDS,
            istio=lost("Istio does not know which engine has an adapter: requests go to any, and some get 404"),
            gateway_api=lost(
                "gateways do not know which engine has an adapter: requests go to any, and some get 404"
            ),
        ),
        checks=(
            CelRule(
                rule="!has(self.adapter) || !self.adapter || (has(self.match) && has(self.match.model))",
                message="set match.model to the name of the adapter",
                code="SG040",
                field=".adapter",
            ),
        ),
    )
    adapter_canary: AdapterCanary | None = documented_field(
        None,
        "Another adapter that gets a share of the requests for the adapter of this route.",
        checks=(
            CelRule(
                rule="!has(self.adapterCanary) || (has(self.adapter) && self.adapter)",
                message="adapterCanary needs adapter: true",
                code="SG040",
                field=".adapterCanary",
            ),
        ),
    )
    affinity: Affinity | None = documented_field(
        None,
        "Send requests with the same key to the same engine of a target pool while it is healthy and has room. "
        "Default: to the engine with the fewest requests.",
        checks=(
            CelRule(
                rule="!has(self.affinity) || !has(self.affinity.mode) || self.affinity.mode != 'strict' || "
                "self.pools.size() == 1",
                message="mode: strict needs exactly one pool in pools",
                code="SG040",
                field=".affinity",
            ),
            CelRule(
                rule="!has(self.affinity) || !has(self.affinity.tenant) || !self.affinity.tenant || "
                "has(self.listener.tenants)",
                message="affinity.tenant needs listener.tenants",
                code="SG040",
                field=".affinity",
            ),
        ),
    )
    static_answer: StaticAnswer | None = documented_field(
        None,
        "Answer that Envoy gives by itself at a degradation level, or while no pool serves; default: refusals.",
    )
    prefill: RemotePrefill | None = documented_field(
        None,
        "Let engines of another pool prefill. Envoy names one of them to the decode engine's routing side-car, in "
        "the header `x-prefiller-host-port`. The first such route of a port changes the listener. Default: "
        "engines prefill themselves.",
    )
    objectives: Objectives = documented_field(
        Objectives,
        "What callers of this route are promised, measured from access logs. Alerts watch how fast the error "
        "budget is spent.",
    )
    max_body_bytes: int = documented_field(
        16 * 1024 * 1024,
        "Largest request body that can be matched by model and retried. With `requestFields: headers` a larger "
        "one is sent on, and not retried.",
        why="Envoy's default of 1 MiB silently drops retries of long prompts",
        unit="bytes",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("request_body_buffer_limit of the route", "EnvoyFilter"),
            gateway_api=approximated(
                "requestBuffer.limit: larger requests are refused",
                "BackendTrafficPolicy",
            ),
        ),
        ge=1024,
        le=1024 * 1024 * 1024,
    )

    @property
    def adapter_name(self) -> str:
        """The LoRA adapter that requests ask for; empty for a model."""
        return (self.match.model or "") if self.adapter else ""

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """The LoRA adapters that engines are asked for: that of the route, and its canary."""
        if not self.adapter:
            return ()
        return (self.adapter_name, *(() if self.adapter_canary is None else (self.adapter_canary.name,)))


class ModelRoute(Spec):
    """A named routing rule."""

    api_version: ApiVersion = documented_field(API_VERSION, "Version of the document.", targets=OF_THE_VERSION)
    kind: Literal["ModelRoute"] = documented_field("ModelRoute", "Kind of the document.", targets=OF_THE_KIND)
    metadata: Metadata = documented_field(
        ..., "Name and labels.", targets=exported_alike(Xds.RTDS | Xds.RDS, OF_THE_NAME)
    )
    spec: ModelRouteSpec = documented_field(..., "The routing rule.")
