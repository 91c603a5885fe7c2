"""Affinity of a route: requests with the same key go to the same engine while it is healthy and has room."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from policies.document import Spec, documented_field
from policies.fidelity import FieldOutcome, kept, lost
from policies.field_checks import CelRule
from policies.field_targets import FieldTargets, Xds
from policies.quantity import Duration

_NAME_PATTERN: Final = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
"""Names of headers and cookies. Source: RFC 9110, section 5.6.2; RFC 6265, section 4.1.1."""

_GATEWAY_HASH: Final = kept("loadBalancer.consistentHash", "BackendTrafficPolicy")
_ISTIO_HASH: Final = kept("loadBalancer.consistentHash", "DestinationRule")


def _key(gateway_api: FieldOutcome = _GATEWAY_HASH) -> FieldTargets:
    return FieldTargets(live=Xds.RDS | Xds.CDS | Xds.EDS, istio=_ISTIO_HASH, gateway_api=gateway_api)


class AffinityMode(StrEnum):
    """What keeps requests with one key on one engine."""

    SOFT = "soft"
    STRICT = "strict"


class CookieKey(Spec):
    """A cookie that identifies a session."""

    name: str = documented_field(
        ..., "Name of the cookie.", targets=_key(), pattern=_NAME_PATTERN, min_length=1, max_length=64
    )
    ttl: Duration | None = documented_field(
        None,
        "Lifetime of the cookie that Envoy sets for callers without one; 0s is a session cookie. Default: Envoy "
        "sets none, and requests without the cookie have no key.",
        unit="duration",
        targets=_key(),
        ge=0,
        le=365 * 24 * 3600,
    )
    path: Annotated[str, Field(pattern=r"^/[!-:<-~]*$", max_length=256)] = documented_field(
        "/",
        "Path of the cookie that Envoy sets.",
        targets=_key(lost("Envoy Gateway sets the cookie for the path /")),
    )


class PrefixKey(Spec):
    """The begin of the prompt, for engines with a prefix cache."""

    characters: int = documented_field(
        256,
        "Bytes of the first message after the system prompt, or of `prompt`, that count. The first 4096 of the "
        "system prompt count, too.",
        why="enough to distinguish conversations, few enough that their later turns have the same key",
        unit="bytes",
        targets=FieldTargets(
            live=Xds.RDS | Xds.LDS | Xds.CDS | Xds.EDS,
            istio=lost("Istio's proxies read no bodies; a caller can send a header as key"),
            gateway_api=lost("gateways read no bodies; a caller can send a header as key"),
        ),
        ge=16,
        le=16384,
    )


class Affinity(Spec):
    """The key of a request, and how far locality outranks load."""

    mode: AffinityMode = documented_field(
        AffinityMode.SOFT,
        "soft: the key chooses the engine, and load may choose another; when engines come and go, some keys move. "
        "strict: the first answer names the engine in the cookie or header, and the session stays there until the "
        "engine is ejected or drains.",
        why="a lost prefix costs one prefill; only state that engines do not share needs more",
        targets=FieldTargets(
            live=Xds.RDS | Xds.LDS | Xds.CDS | Xds.EDS,
            istio=kept("loadBalancer.consistentHash", "DestinationRule"),
            gateway_api=kept("loadBalancer.consistentHash", "BackendTrafficPolicy"),
        ),
    )
    header: str | None = documented_field(
        None, "Request header whose value is the key.", targets=_key(), pattern=_NAME_PATTERN, max_length=128
    )
    cookie: CookieKey | None = documented_field(None, "Cookie whose value is the key.")
    tenant: bool = documented_field(
        False,
        "The name of the tenant is the key: the value of the header that `listener.tenants.header` names.",
        targets=FieldTargets(
            live=Xds.RDS | Xds.CDS | Xds.EDS,
            istio=lost("Istio knows no tenants; if a proxy in front sets the header, use affinity.header"),
            gateway_api=lost("gateways know no tenants; if a proxy in front sets the header, use affinity.header"),
        ),
    )
    prefix: PrefixKey | None = documented_field(
        None,
        "The begin of the prompt is the key. Envoy's script reads it from the JSON body and keeps only a hash.",
        checks=(
            CelRule(
                rule="(has(self.header) ? 1 : 0) + (has(self.cookie) ? 1 : 0) + (has(self.prefix) ? 1 : 0) + "
                "(has(self.tenant) && self.tenant ? 1 : 0) == 1",
                message="set exactly one of header, cookie, tenant and prefix",
                code="SG040",
            ),
            CelRule(
                rule="!has(self.mode) || self.mode != 'strict' || has(self.header) || has(self.cookie)",
                message="mode: strict needs a cookie or a header",
                code="SG040",
            ),
        ),
    )
    slack_percent: float = documented_field(
        10,
        "Requests in flight of an engine above its share, by weight, from which further requests go to other "
        "engines, key or not.",
        why="measured with half of all requests on one key: no engine gets more than 1.3 times its share; "
        "25 gives 1.4, and keeps 5 of 100 more requests at home",
        unit="%",
        targets=FieldTargets(
            live=Xds.CDS,
            istio=lost("Istio's consistent hash has no bound: the load of one key stays on one engine"),
            gateway_api=lost("Envoy Gateway's consistent hash has no bound"),
        ),
        ge=1,
        le=1000,
    )

    return_after: Duration = documented_field(
        0.0,
        "An engine that was out of rotation gets its keys back only after it has been healthy this long: not on "
        "trial, and without failing calls. Until then it has about 5 % of them. It gets them at once if the other "
        "engines have little room. 0s: they come back with the engine.",
        why="each return moves keys twice, and a lost prefix costs a prefill; set it where engines flap",
        unit="duration",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=lost("keys of an endpoint come back with it"),
            gateway_api=lost("keys of an endpoint come back with it"),
        ),
        le=86400,
    )
    move_within: Duration = documented_field(
        60.0,
        "Strict sessions of an engine that an operator or its agent drains move to others over this time; 0s: at "
        "once. Sessions of other engines that leave always move at once.",
        why="other engines compute 5 % of the lost prompts at a time",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=lost("pods end without a drain: their sessions move at once"),
            gateway_api=lost("gateways move all sessions of an endpoint that leaves at once"),
        ),
        le=86400,
    )

    @property
    def is_strict(self) -> bool:
        """Whether sessions stay on one engine."""
        return self.mode is AffinityMode.STRICT

    @property
    def by_header_or_cookie(self) -> bool:
        """Whether proxies without our script can read the key."""
        return self.header is not None or self.cookie is not None
