"""Check relations between the fields of one document, beyond the type of each; the result is cached with it."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final

from policies.affinity import AffinityMode
from policies.external_service import nameless
from policies.findings import Problem
from policies.origin import Step, line_of, path_steps, path_text
from policies.pool import EnginePool
from policies.quantity import format_duration, is_ip
from policies.resilience import DEFAULT, ResiliencePolicy
from policies.route import MODEL_HEADER, ModelRoute, can_be_stated
from policies.static_answer import WITHOUT_BODY
from policies.tenants import OTHERS, PeriodQuota, Quota, Tenants
from policies.validated_document import ValidatedDocument

_WHOLE_PERCENT: Final = 100.0


def problem_in(
    document: ValidatedDocument, code: str, steps: tuple[Step, ...], message: str, **details: str
) -> Problem:
    """A problem at the field that ``steps`` lead to."""
    return Problem(code=code, at=document.at(*steps), path=path_text(steps), message=message, **details)


def document_contradictions(document: ValidatedDocument) -> tuple[Problem, ...]:
    """Contradictions inside one document."""
    match document.model:
        case EnginePool() as pool:
            return tuple(_in_pool(pool, document))
        case ModelRoute() as route:
            return tuple(_in_route(route, document))
        case ResiliencePolicy() as policy:
            return tuple(_in_policy(policy, document))
        case _:
            return ()


def repeated(values: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """Indexes of repeated values, each with the index of the first."""
    first: dict[Hashable, int] = {}
    for number, value in enumerate(values):
        before = first.setdefault(value, number)
        if before != number:
            yield number, before


def _in_pool(pool: EnginePool, document: ValidatedDocument) -> Iterator[Problem]:
    endpoints = pool.spec.endpoints
    same_address = dict(repeated((one.address, one.port) for one in endpoints))
    for number, before in same_address.items():
        line = line_of(document.at("spec", "endpoints", before))
        endpoint = endpoints[number]
        yield problem_in(
            document,
            "SG035",
            ("spec", "endpoints", number),
            f"duplicate engine {endpoint.address}:{endpoint.port}; the first is in line {line}",
            hint="remove one of the two; set slots for a larger share",
        )
    for number, before in repeated(one.name for one in endpoints):
        if same_address.get(number) == before:
            continue
        line = line_of(document.at("spec", "endpoints", before))
        yield problem_in(
            document,
            "SG035",
            ("spec", "endpoints", number, "name"),
            f"duplicate engine name {endpoints[number].name}; the first is in line {line}",
            hint="use unique names, or remove them",
        )
    found = pool.spec.kubernetes
    if found is not None and (found.service is None) == (not found.selector):
        both = found.service is not None
        yield problem_in(
            document,
            "SG040",
            ("spec", "kubernetes"),
            "service and selector exclude each other" if both else "no service and no selector",
            allowed="exactly one of service and selector",
            hint="remove one of the two"
            if both
            else "set service to the name of the Service in front of the engines",
        )
    yield from _names_to_prove(pool, document)
    adapters = pool.spec.adapters
    for number, before in repeated(one.name for one in adapters):
        line = line_of(document.at("spec", "adapters", before))
        yield problem_in(
            document,
            "SG040",
            ("spec", "adapters", number, "name"),
            f"duplicate adapter {adapters[number].name}; the first is in line {line}",
            hint="keep one of the two",
        )
    longest = pool.spec.longest_service_time
    if longest is not None and longest < pool.spec.service_time:
        yield problem_in(
            document,
            "SG040",
            ("spec", "longestServiceTime"),
            "longestServiceTime is below serviceTime, the mean",
            found=format_duration(longest),
            allowed=f"at least serviceTime, {format_duration(pool.spec.service_time)}",
        )


def _names_to_prove(pool: EnginePool, document: ValidatedDocument) -> Iterator[Problem]:
    """Certificates prove names: a pool with addresses alone has nothing to verify."""
    tls = pool.spec.tls
    if tls is None or tls.server_name or tls.subject_alt_names:
        return
    nameless = next((one.address for one in pool.spec.endpoints if is_ip(one.address)), None)
    if nameless is not None or pool.spec.kubernetes is not None:
        yield problem_in(
            document,
            "SG044",
            ("spec", "tls"),
            f"no name to verify in the certificate of {nameless or 'a pod'}",
            allowed="serverName, subjectAltNames, or engines with host names",
            hint="set serverName to the name in all certificates, or set subjectAltNames",
        )


def _in_route(route: ModelRoute, document: ValidatedDocument) -> Iterator[Problem]:
    pools = route.spec.pools
    for number, before in repeated(one.pool for one in pools):
        line = line_of(document.at("spec", "pools", before))
        yield problem_in(
            document,
            "SG039",
            ("spec", "pools", number, "pool"),
            f"duplicate pool {pools[number].pool}; the first is in line {line}",
            hint="keep one entry with the sum of the weights",
        )
    yield from _in_fallbacks(route, document)
    if not any(one.weight for one in pools):
        yield problem_in(
            document,
            "SG038",
            ("spec", "pools"),
            "all weights are 0: no request can be routed",
            allowed="at least one weight above 0",
        )
    for number, header in enumerate(route.spec.match.headers):
        given = [name for name in ("exact", "prefix", "regex", "present") if getattr(header, name) is not None]
        if len(given) > 1:
            yield problem_in(
                document,
                "SG040",
                ("spec", "match", "headers", number),
                f"{' and '.join(given)} exclude each other in one header match",
                hint="add a second entry with the same header name",
            )

    yield from _auth(route, document)
    yield from _caller_identity(route, document)
    yield from _tenants(route, document)
    yield from _affinity(route, document)
    yield from _static_answer(route, document)
    model = route.spec.match.model
    if route.spec.adapter and model is None:
        yield problem_in(
            document,
            "SG040",
            ("spec", "adapter"),
            "the route names no adapter",
            hint="set match.model to the name of the adapter, as engines list it at /v1/models",
        )
    if route.spec.adapter and route.spec.prefill is not None:
        yield problem_in(
            document,
            "SG040",
            ("spec", "prefill"),
            "adapter and prefill exclude each other: Envoy does not know which prefill engine has the adapter",
            hint="remove prefill; decode engines prefill requests for adapters themselves",
        )
    yield from _adapter_canary(route, document)
    if route.spec.listener.reads_headers and model is not None and not can_be_stated(model):
        yield problem_in(
            document,
            "SG040",
            ("spec", "match", "model"),
            f"the header {MODEL_HEADER} cannot carry this model, and the listener has requestFields: headers",
            found=model,
            allowed="printable ASCII without a comma",
            hint="serve the model under another name (--served-model-name), or set requestFields: body",
        )
    if route.spec.listener.reads_headers and route.spec.match.tokens_above is not None:
        yield problem_in(
            document,
            "SG040",
            ("spec", "match", "tokensAbove"),
            "Envoy estimates no tokens on this port: the listener has requestFields: headers",
            hint="set requestFields: body, or let the caller that states the fields send a header to match",
        )
    for one in route.spec.listener.external_services():
        if nameless(one.service):
            yield problem_in(
                document,
                "SG044",
                ("spec", "listener", *path_steps(one.field), "tls"),
                f"no name to verify in the certificate of {one.service.address}",
                allowed="serverName, or a host name as address",
                hint="set serverName to the name in the certificate",
            )


def _affinity(route: ModelRoute, document: ValidatedDocument) -> Iterator[Problem]:
    """One key, and one that Envoy reads."""
    affinity = route.spec.affinity
    if affinity is None:
        return
    given = [name for name in ("header", "cookie", "prefix") if getattr(affinity, name) is not None]
    given += ["tenant"] if affinity.tenant else []
    if len(given) != 1:
        yield problem_in(
            document,
            "SG040",
            ("spec", "affinity"),
            f"{' and '.join(given)} exclude each other" if given else "no key of requests",
            allowed="exactly one of header, cookie, tenant and prefix",
            hint="keep one of them" if given else "set prefix: {} for engines with a prefix cache",
        )
    elif affinity.is_strict and affinity.prefix is not None:
        yield problem_in(
            document,
            "SG040",
            ("spec", "affinity", "prefix"),
            "a prompt names no engine, and mode: strict needs a key that the answer can set",
            hint="set cookie or header, or mode: soft",
        )
    elif affinity.is_strict and affinity.tenant:
        yield problem_in(
            document,
            "SG040",
            ("spec", "affinity", "tenant"),
            "a tenant names no engine, and mode: strict needs a key that the answer can set",
            hint="set cookie or header, or mode: soft",
        )
    elif affinity.tenant and route.spec.listener.tenants is None:
        yield problem_in(
            document,
            "SG040",
            ("spec", "affinity", "tenant"),
            "the listener has no tenants, so no request has a key",
            hint="set listener.tenants, or affinity.header",
        )
    elif affinity.is_strict and len({share.pool for share in route.spec.pools}) > 1:
        yield problem_in(
            document,
            "SG040",
            ("spec", "affinity", "mode"),
            "the weights of several pools would move a session with each request",
            hint="keep one pool, with fallbacks if need be, or set mode: soft",
        )
    elif affinity.prefix is not None and route.spec.listener.reads_headers:
        yield problem_in(
            document,
            "SG040",
            ("spec", "affinity", "prefix"),
            "Envoy reads no prompts on this port: the listener has requestFields: headers",
            hint="set requestFields: body, or let the caller that states the fields send a key: affinity.header",
        )


def _static_answer(route: ModelRoute, document: ValidatedDocument) -> Iterator[Problem]:
    """An answer that is never given, and one whose status allows no body."""
    answer = route.spec.static_answer
    if answer is None:
        return
    if answer.from_level is None and not answer.when_lost:
        yield problem_in(
            document,
            "SG040",
            ("spec", "staticAnswer", "whenLost"),
            "the answer is never given: whenLost is false, and fromLevel is absent",
            hint="set fromLevel to a degradation level, 1 to 4, or remove whenLost",
        )
    if answer.status in WITHOUT_BODY:
        yield problem_in(
            document,
            "SG040",
            ("spec", "staticAnswer", "status"),
            f"an answer with status {answer.status} has no body",
            found=str(answer.status),
            hint="use 200, 429 or 503",
        )


def _in_fallbacks(route: ModelRoute, document: ValidatedDocument) -> Iterator[Problem]:
    """A request passes each pool once: no pool is named twice, and no target is its own fallback."""
    fallbacks = route.spec.fallbacks
    for number, before in repeated(fallbacks):
        line = line_of(document.at("spec", "fallbacks", before))
        yield problem_in(
            document,
            "SG039",
            ("spec", "fallbacks", number),
            f"duplicate fallback {fallbacks[number]}; the first is in line {line}",
            hint="remove one of the two",
        )
    targets = {share.pool: number for number, share in enumerate(route.spec.pools) if share.weight}
    for number, pool in enumerate(fallbacks):
        if pool in targets:
            line = line_of(document.at("spec", "pools", targets[pool]))
            yield problem_in(
                document,
                "SG039",
                ("spec", "fallbacks", number),
                f"fallback {pool} is also a target, in line {line}, and fails with it",
                hint="use another pool, or remove it from spec.fallbacks",
            )


def _auth(route: ModelRoute, document: ValidatedDocument) -> Iterator[Problem]:
    """Key sets without exactly one source, repeated names, and public routes that only a body selects."""
    providers = () if route.spec.listener.jwt is None else route.spec.listener.jwt.providers
    steps: tuple[Step, ...] = ("spec", "listener", "jwt", "providers")
    for number, _ in repeated(one.name for one in providers):
        message = f"duplicate provider {providers[number].name}"
        yield problem_in(document, "SG039", (*steps, number, "name"), message, hint="use unique names")
    for number, one in enumerate(providers):
        if (one.remote_jwks is None) == (one.local_jwks is None):
            message = f"provider {one.name} needs exactly one of remoteJwks and localJwks"
            yield problem_in(document, "SG040", (*steps, number), message, hint="name one key set")
        if one.local_jwks is not None and (one.local_jwks.inline is None) == (one.local_jwks.file is None):
            message = f"provider {one.name} needs exactly one of inline and file"
            yield problem_in(document, "SG040", (*steps, number, "localJwks"), message, hint="name one key set")
    if route.spec.public and matches_fields(route):
        yield problem_in(
            document,
            "SG040",
            ("spec", "public"),
            "a public route cannot match model or stream: "
            + (
                "callers would choose by a header whether they are checked"
                if route.spec.listener.reads_headers
                else "callers are checked before Envoy reads bodies"
            ),
            hint="match the path or headers, or remove public",
        )


def _caller_identity(route: ModelRoute, document: ValidatedDocument) -> Iterator[Problem]:
    """A header that claims and certificates write."""
    listener = route.spec.listener
    if listener.identity_header in listener.claim_headers():
        yield problem_in(
            document,
            "SG040",
            ("spec", "listener", "tls", "callers", "identityHeader"),
            f"jwt.providers[].claimToHeaders writes {listener.identity_header}, too",
            hint="use another header",
        )


def _adapter_canary(route: ModelRoute, document: ValidatedDocument) -> Iterator[Problem]:
    """Canaries without an adapter to take from, of the same one, or of requests that stay where they are."""
    spec = route.spec
    if spec.adapter_canary is None:
        return
    strict = spec.affinity is not None and spec.affinity.mode is AffinityMode.STRICT
    for wrong, message, hint in (
        (not spec.adapter, "the route has no adapter that gives it requests", "set adapter: true"),
        (spec.adapter_canary.name == spec.match.model, "it is the adapter of the route", "name the new adapter"),
        (strict, "sessions of affinity.mode: strict stay with engines that may lack it", "use mode: soft"),
        (
            spec.listener.reads_headers,
            "the listener has requestFields: headers, so Envoy reads and changes no model in the body",
            "set requestFields: body",
        ),
    ):
        if wrong:
            yield problem_in(document, "SG040", ("spec", "adapterCanary"), message, hint=hint)
            return


def _tenants(route: ModelRoute, document: ValidatedDocument) -> Iterator[Problem]:
    """Unproven names of tenants, repeated ones, and bursts above their quota."""
    tenants = route.spec.listener.tenants
    if tenants is None:
        return
    steps: tuple[Step, ...] = ("spec", "listener", "tenants")
    if not tenants.trust_header and tenants.header not in route.spec.listener.proven_headers():
        yield problem_in(
            document,
            "SG046",
            (*steps, "header"),
            f"any caller can send {tenants.header}, and take the quota of any tenant",
            hint="write it from a claim with jwt.providers[].claimToHeaders or from a certificate with "
            "tls.callers.identityHeader, or set trustHeader: true if a proxy in front of Envoy sets it",
        )
    for number, before in repeated(one.name for one in tenants.named):
        message = f"duplicate tenant {tenants.named[number].name}; the first is number {before + 1}"
        yield problem_in(document, "SG039", (*steps, "named", number, "name"), message, hint="use unique names")
    for number, one in enumerate(tenants.named):
        if one.name == OTHERS:
            yield problem_in(
                document,
                "SG039",
                (*steps, "named", number, "name"),
                f"{OTHERS} is the place of all other callers",
                hint="set tenants.others, or use another name",
            )
    quotas: tuple[tuple[tuple[Step, ...], Quota], ...] = (
        *((("named", number), one) for number, one in enumerate(tenants.named)),
        (("others",), tenants.others),
    )
    yield from _shares(tenants, quotas, document)
    for place, quota in quotas:
        if quota.requests is None and quota.burst is not None:
            yield problem_in(
                document,
                "SG040",
                (*steps, *place, "burst"),
                "a burst of requests without a quota of requests",
                hint="set requests, or remove burst",
            )
        elif quota.requests is not None and quota.burst is not None and quota.burst > quota.requests:
            yield problem_in(
                document,
                "SG040",
                (*steps, *place, "burst"),
                f"a burst of {quota.burst} exceeds the quota of {quota}",
                allowed=f"at most {quota.requests}",
            )
        if quota.tokens is None and quota.tokens_burst is not None:
            yield problem_in(
                document,
                "SG040",
                (*steps, *place, "tokensBurst"),
                "a burst of tokens without a quota of tokens",
                hint="set tokens, or remove tokensBurst",
            )
        yield from _periods(quota, (*steps, *place), document)


def _periods(quota: Quota, steps: tuple[Step, ...], document: ValidatedDocument) -> Iterator[Problem]:
    """Limits of calendar periods that limit nothing, and months that admit less than one of their days."""
    for period, limit in quota.periods.items():
        if limit.requests is None and limit.tokens is None:
            yield problem_in(
                document,
                "SG040",
                (*steps, f"per{period.value.capitalize()}"),
                f"a quota per {period.value} without a limit",
                hint="set requests, tokens or both, or remove it",
            )
    day, month = quota.per_day or PeriodQuota(), quota.per_month or PeriodQuota()
    for field, of_day, of_month in (
        ("requests", day.requests, month.requests),
        ("tokens", day.tokens, month.tokens),
    ):
        if of_day is not None and of_month is not None and of_month < of_day:
            yield problem_in(
                document,
                "SG040",
                (*steps, "perMonth", field),
                f"{of_month} {field} per month are less than {of_day} per day",
                allowed=f"at least {of_day}",
            )


def _shares(
    tenants: Tenants, quotas: Sequence[tuple[tuple[Step, ...], Quota]], document: ValidatedDocument
) -> Iterator[Problem]:
    """Tenants without a limit of any kind, shares without fair shares, and minima above the whole."""
    steps: tuple[Step, ...] = ("spec", "listener", "tenants")
    if tenants.fair_shares:
        least = sum(quota.min_percent for _, quota in quotas)
        if least > _WHOLE_PERCENT:
            *_, last = (place for place, quota in quotas if quota.min_percent)
            yield problem_in(
                document,
                "SG040",
                (*steps, *last, "minPercent"),
                f"the least shares of all tenants add up to {least:g} %",
                allowed="at most 100 % together",
            )
        return
    for place, quota in quotas:
        if quota.requests is None:
            yield problem_in(
                document,
                "SG024",
                (*steps, *place, "requests"),
                "a tenant without a quota of requests",
                hint="set requests, or set tenants.fairShares: true",
            )
        for name, field in (("weight", "weight"), ("min_percent", "minPercent")):
            if name in quota.model_fields_set:
                yield problem_in(
                    document,
                    "SG040",
                    (*steps, *place, field),
                    f"{field} has no effect without fair shares",
                    hint=f"set tenants.fairShares: true, or remove {field}",
                )


def matches_fields(route: ModelRoute) -> bool:
    """Whether only the fields of a request tell whether the route matches."""
    match = route.spec.match
    return match.model is not None or match.stream is not None or match.tokens_above is not None


def _in_policy(policy: ResiliencePolicy, document: ValidatedDocument) -> Iterator[Problem]:
    pools = policy.spec.pools
    if policy.metadata.name == DEFAULT:
        if pools:
            yield problem_in(
                document,
                "SG034",
                ("spec", "pools"),
                "the policy named default applies to every pool and takes no list",
                hint="remove the list, or rename the policy",
            )
    elif not pools:
        yield problem_in(
            document,
            "SG033",
            ("spec", "pools") if "pools" in policy.spec.model_fields_set else ("spec",),
            "policy without pools",
            allowed="at least one pool in spec.pools",
            hint="list pools, or name the policy default to apply it to every pool",
        )
    for number, before in repeated(pools):
        line = line_of(document.at("spec", "pools", before))
        yield problem_in(
            document,
            "SG039",
            ("spec", "pools", number),
            f"duplicate pool {pools[number]}; the first is in line {line}",
            hint="remove one of the two",
        )
