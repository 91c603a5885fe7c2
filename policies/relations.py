"""Check relations within a document and between documents, beyond the type of each field.

``document_contradictions`` checks one document and is cached with it; ``reference_contradictions`` checks all of
them together.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from policies.document import Spec
from policies.external_service import nameless
from policies.findings import PolicyError, Problem, did_you_mean
from policies.merge import effective, layers
from policies.origin import Step, line_of, origin, path_steps, path_text
from policies.pool import EnginePool
from policies.quantity import format_duration, is_ip
from policies.remote_prefill import Stage
from policies.resilience import DEFAULT, WAIT_SHARE, ResiliencePolicy, ResilienceSpec
from policies.route import MODEL_HEADER, Listener, Match, ModelRoute, can_be_stated
from policies.static_answer import WITHOUT_BODY
from policies.tenants import OTHERS, Quota
from policies.validated_document import ValidatedDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedDocument:
    """A document and the file it is in."""

    file: str
    document: ValidatedDocument

    def place(self, *steps: Step) -> str:
        """``file:line:column`` of a field."""
        return str(origin(self.file, self.document.at(*steps)))


def _problem(
    document: ValidatedDocument, code: str, steps: tuple[Step, ...], message: str, **details: str
) -> Problem:
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


def _repeated(values: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """Indexes of repeated values, each with the index of the first."""
    first: dict[Hashable, int] = {}
    for number, value in enumerate(values):
        before = first.setdefault(value, number)
        if before != number:
            yield number, before


def _in_pool(pool: EnginePool, document: ValidatedDocument) -> Iterator[Problem]:
    endpoints = pool.spec.endpoints
    same_address = dict(_repeated((one.address, one.port) for one in endpoints))
    for number, before in same_address.items():
        line = line_of(document.at("spec", "endpoints", before))
        endpoint = endpoints[number]
        yield _problem(
            document,
            "SG035",
            ("spec", "endpoints", number),
            f"duplicate engine {endpoint.address}:{endpoint.port}; the first is in line {line}",
            hint="remove one of the two; set slots for a larger share",
        )
    for number, before in _repeated(one.name for one in endpoints):
        if same_address.get(number) == before:
            continue
        line = line_of(document.at("spec", "endpoints", before))
        yield _problem(
            document,
            "SG035",
            ("spec", "endpoints", number, "name"),
            f"duplicate engine name {endpoints[number].name}; the first is in line {line}",
            hint="use unique names, or remove them",
        )
    found = pool.spec.kubernetes
    if found is not None and (found.service is None) == (not found.selector):
        both = found.service is not None
        yield _problem(
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
    longest = pool.spec.longest_service_time
    if longest is not None and longest < pool.spec.service_time:
        yield _problem(
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
        yield _problem(
            document,
            "SG044",
            ("spec", "tls"),
            f"no name to verify in the certificate of {nameless or 'a pod'}",
            allowed="serverName, subjectAltNames, or engines with host names",
            hint="set serverName to the name in all certificates, or set subjectAltNames",
        )


def _in_route(route: ModelRoute, document: ValidatedDocument) -> Iterator[Problem]:
    pools = route.spec.pools
    for number, before in _repeated(one.pool for one in pools):
        line = line_of(document.at("spec", "pools", before))
        yield _problem(
            document,
            "SG039",
            ("spec", "pools", number, "pool"),
            f"duplicate pool {pools[number].pool}; the first is in line {line}",
            hint="keep one entry with the sum of the weights",
        )
    yield from _in_fallbacks(route, document)
    if not any(one.weight for one in pools):
        yield _problem(
            document,
            "SG038",
            ("spec", "pools"),
            "all weights are 0: no request can be routed",
            allowed="at least one weight above 0",
        )
    for number, header in enumerate(route.spec.match.headers):
        given = [name for name in ("exact", "prefix", "regex", "present") if getattr(header, name) is not None]
        if len(given) > 1:
            yield _problem(
                document,
                "SG040",
                ("spec", "match", "headers", number),
                f"{' and '.join(given)} exclude each other in one header match",
                hint="add a second entry with the same header name",
            )

    yield from _auth(route, document)
    yield from _tenants(route, document)
    yield from _affinity(route, document)
    yield from _static_answer(route, document)
    model = route.spec.match.model
    if route.spec.adapter and model is None:
        yield _problem(
            document,
            "SG040",
            ("spec", "adapter"),
            "the route names no adapter",
            hint="set match.model to the name of the adapter, as engines list it at /v1/models",
        )
    if route.spec.adapter and route.spec.prefill is not None:
        yield _problem(
            document,
            "SG040",
            ("spec", "prefill"),
            "adapter and prefill exclude each other: Envoy does not know which prefill engine has the adapter",
            hint="remove prefill; decode engines prefill requests for adapters themselves",
        )
    if route.spec.listener.reads_headers and model is not None and not can_be_stated(model):
        yield _problem(
            document,
            "SG040",
            ("spec", "match", "model"),
            f"the header {MODEL_HEADER} cannot carry this model, and the listener has requestFields: headers",
            found=model,
            allowed="printable ASCII without a comma",
            hint="serve the model under another name (--served-model-name), or set requestFields: body",
        )
    for one in route.spec.listener.external_services():
        if nameless(one.service):
            yield _problem(
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
    if len(given) != 1:
        yield _problem(
            document,
            "SG040",
            ("spec", "affinity"),
            f"{' and '.join(given)} exclude each other" if given else "no key of requests",
            allowed="exactly one of header, cookie and prefix",
            hint="keep one of them" if given else "set prefix: {} for engines with a prefix cache",
        )
    elif affinity.is_strict and affinity.prefix is not None:
        yield _problem(
            document,
            "SG040",
            ("spec", "affinity", "prefix"),
            "a prompt names no engine, and mode: strict needs a key that the answer can set",
            hint="set cookie or header, or mode: soft",
        )
    elif affinity.is_strict and len({share.pool for share in route.spec.pools}) > 1:
        yield _problem(
            document,
            "SG040",
            ("spec", "affinity", "mode"),
            "the weights of several pools would move a session with each request",
            hint="keep one pool, with fallbacks if need be, or set mode: soft",
        )
    elif affinity.prefix is not None and route.spec.listener.reads_headers:
        yield _problem(
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
        yield _problem(
            document,
            "SG040",
            ("spec", "staticAnswer", "whenLost"),
            "the answer is never given: whenLost is false, and fromLevel is absent",
            hint="set fromLevel to a degradation level, 1 to 4, or remove whenLost",
        )
    if answer.status in WITHOUT_BODY:
        yield _problem(
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
    for number, before in _repeated(fallbacks):
        line = line_of(document.at("spec", "fallbacks", before))
        yield _problem(
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
            yield _problem(
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
    for number, _ in _repeated(one.name for one in providers):
        message = f"duplicate provider {providers[number].name}"
        yield _problem(document, "SG039", (*steps, number, "name"), message, hint="use unique names")
    for number, one in enumerate(providers):
        if (one.remote_jwks is None) == (one.local_jwks is None):
            message = f"provider {one.name} needs exactly one of remoteJwks and localJwks"
            yield _problem(document, "SG040", (*steps, number), message, hint="name one key set")
        if one.local_jwks is not None and (one.local_jwks.inline is None) == (one.local_jwks.file is None):
            message = f"provider {one.name} needs exactly one of inline and file"
            yield _problem(document, "SG040", (*steps, number, "localJwks"), message, hint="name one key set")
    if route.spec.public and _matches_fields(route):
        yield _problem(
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


def _tenants(route: ModelRoute, document: ValidatedDocument) -> Iterator[Problem]:
    """Unproven names of tenants, repeated ones, and bursts above their quota."""
    tenants = route.spec.listener.tenants
    if tenants is None:
        return
    steps: tuple[Step, ...] = ("spec", "listener", "tenants")
    if not tenants.trust_header and tenants.header not in route.spec.listener.claim_headers():
        yield _problem(
            document,
            "SG046",
            (*steps, "header"),
            f"any caller can send {tenants.header}, and take the quota of any tenant",
            hint="write it from a claim with jwt.providers[].claimToHeaders, or set trustHeader: true if a proxy "
            "in front of Envoy sets it",
        )
    for number, before in _repeated(one.name for one in tenants.named):
        message = f"duplicate tenant {tenants.named[number].name}; the first is number {before + 1}"
        yield _problem(document, "SG039", (*steps, "named", number, "name"), message, hint="use unique names")
    for number, one in enumerate(tenants.named):
        if one.name == OTHERS:
            yield _problem(
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
    for place, quota in quotas:
        if quota.burst is not None and quota.burst > quota.requests:
            yield _problem(
                document,
                "SG040",
                (*steps, *place, "burst"),
                f"a burst of {quota.burst} exceeds the quota of {quota}",
                allowed=f"at most {quota.requests}",
            )


def _matches_fields(route: ModelRoute) -> bool:
    return route.spec.match.model is not None or route.spec.match.stream is not None


def _public(documents: Sequence[LocatedDocument]) -> Iterator[PolicyError]:
    """Public routes that stand for another route until the body is read: its callers would not be checked."""
    routes = list(_routes(documents))
    for placed, route in routes:
        if not route.spec.public:
            continue
        path = route.spec.match.path_prefix
        only = "a stated header" if route.spec.listener.reads_headers else "the body"
        for there, other in routes:
            prefix = other.spec.match.path_prefix
            if (
                other.spec.listener.port == route.spec.listener.port
                and not other.spec.public
                and _matches_fields(other)
                and (prefix.startswith(path) or path.startswith(prefix))
            ):
                yield _refusal(
                    placed,
                    "SG045",
                    ("spec", "public"),
                    f"only {only} tells its requests from those of route {other.metadata.name}, at "
                    f"{there.place('spec', 'match')}, which is not public",
                    hint="use paths that do not begin with one another, or another port",
                )
                break


def _in_policy(policy: ResiliencePolicy, document: ValidatedDocument) -> Iterator[Problem]:
    pools = policy.spec.pools
    if policy.metadata.name == DEFAULT:
        if pools:
            yield _problem(
                document,
                "SG034",
                ("spec", "pools"),
                "the policy named default applies to every pool and takes no list",
                hint="remove the list, or rename the policy",
            )
    elif not pools:
        yield _problem(
            document,
            "SG033",
            ("spec", "pools") if "pools" in policy.spec.model_fields_set else ("spec",),
            "policy without pools",
            allowed="at least one pool in spec.pools",
            hint="list pools, or name the policy default to apply it to every pool",
        )
    for number, before in _repeated(pools):
        line = line_of(document.at("spec", "pools", before))
        yield _problem(
            document,
            "SG039",
            ("spec", "pools", number),
            f"duplicate pool {pools[number]}; the first is in line {line}",
            hint="remove one of the two",
        )


def reference_contradictions(documents: Sequence[LocatedDocument], *, complete: bool) -> Iterator[PolicyError]:
    """Contradictions between documents; unless ``complete``, missing documents may be in unreadable files."""
    yield from _duplicates(documents)
    if complete:
        yield from _references(documents)
    yield from _claims(documents)
    yield from _listeners(documents)
    yield from _matches(documents)
    yield from _public(documents)
    yield from _stages(documents)
    yield from _layered(documents)
    yield from _waits(documents)


def _refusal(
    placed: LocatedDocument, code: str, steps: tuple[Step, ...], message: str, **details: str
) -> PolicyError:
    return _problem(placed.document, code, steps, message, **details).error(placed.file)


def _duplicates(documents: Sequence[LocatedDocument]) -> Iterator[PolicyError]:
    for number, before in _repeated(one.document.key for one in documents):
        placed, first = documents[number], documents[before]
        yield _refusal(
            placed,
            "SG030",
            ("metadata", "name"),
            f"duplicate {placed.document.kind} {placed.document.name}; the first is at "
            f"{first.place('metadata', 'name')}",
            hint="rename or remove one of the two",
        )


def _references(documents: Sequence[LocatedDocument]) -> Iterator[PolicyError]:
    pools = {one.document.name for one in documents if one.document.kind == "EnginePool"}
    for placed in documents:
        for steps, name in placed.document.pools:
            if name not in pools:
                yield _refusal(
                    placed,
                    "SG031",
                    steps,
                    f"unknown EnginePool {name}",
                    found=name,
                    allowed=_listed(pools),
                    hint=did_you_mean(name, pools) or "add the file of that pool",
                )


def _listed(names: Iterable[str], most: int = 12) -> str:
    ordered = sorted(names)
    rest = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + rest if ordered else "no pool is declared"


def _claims(documents: Sequence[LocatedDocument]) -> Iterator[PolicyError]:
    claimed: dict[str, tuple[LocatedDocument, int]] = {}
    for placed in documents:
        if not isinstance(placed.document.model, ResiliencePolicy):
            continue
        for number, pool in enumerate(placed.document.model.spec.pools):
            first, at = claimed.setdefault(pool, (placed, number))
            if first.document.name != placed.document.name:
                yield _refusal(
                    placed,
                    "SG032",
                    ("spec", "pools", number),
                    f"pool {pool} already has policy {first.document.name}, at {first.place('spec', 'pools', at)}",
                    hint="merge the two policies, or remove the pool from one",
                )


def _routes(documents: Sequence[LocatedDocument]) -> Iterator[tuple[LocatedDocument, ModelRoute]]:
    for placed in documents:
        if isinstance(placed.document.model, ModelRoute):
            yield placed, placed.document.model


def _listeners(documents: Sequence[LocatedDocument]) -> Iterator[PolicyError]:
    first: dict[int, tuple[LocatedDocument, Listener]] = {}
    for placed, route in _routes(documents):
        listener = route.spec.listener
        other, known = first.setdefault(listener.port, (placed, listener))
        for field, here, there in (
            ("address", listener.address, known.address),
            ("receiveTimeout", f"{listener.receive_timeout:g}s", f"{known.receive_timeout:g}s"),
            ("trustedHops", listener.trusted_hops, known.trusted_hops),
            ("requestId", listener.request_id, known.request_id),
            ("requestFields", listener.request_fields, known.request_fields),
            ("accessLog", listener.access_log, known.access_log),
            ("accessLogFile", listener.access_log_file or "none", known.access_log_file or "none"),
            ("accessLogCollector", listener.access_log_collector, known.access_log_collector),
            ("tls", listener.secret or "none", known.secret or "none"),
            ("jwt", listener.jwt, known.jwt),
            ("extAuth", listener.ext_auth, known.ext_auth),
            ("tenants", listener.tenants, known.tenants),
        ):
            if here != there and isinstance(here or there, Spec):
                yield _refusal(
                    placed,
                    "SG036",
                    ("spec", "listener", field),
                    f"port {listener.port} has another {field} in route {other.document.name}, at "
                    f"{other.place('spec', 'listener')}",
                    hint=f"use the same {field}: routes of one port share one listener",
                )
            elif here != there:
                yield _refusal(
                    placed,
                    "SG036",
                    ("spec", "listener", field),
                    f"port {listener.port} has {field} {here} here and {there} in route "
                    f"{other.document.name}, at {other.place('spec', 'listener')}",
                    hint=f"use the same {field}: routes of one port share one listener",
                )


def _condition(match: Match) -> Hashable:
    headers = frozenset(
        (one.name.lower(), one.exact, one.prefix, one.regex, one.present, one.invert) for one in match.headers
    )
    return match.path_prefix, headers, match.model, match.stream


def _matches(documents: Sequence[LocatedDocument]) -> Iterator[PolicyError]:
    first: dict[Hashable, LocatedDocument] = {}
    for placed, route in _routes(documents):
        other = first.setdefault((route.spec.listener.port, _condition(route.spec.match)), placed)
        if other is not placed:
            yield _refusal(
                placed,
                "SG037",
                ("spec", "match"),
                f"same match on port {route.spec.listener.port} as route {other.document.name}, at "
                f"{other.place('spec', 'match')}: only one can take effect",
                hint="change one match, or merge the routes",
            )


def _stages(documents: Sequence[LocatedDocument]) -> Iterator[PolicyError]:
    """Callers' requests on prefill engines, and prefill by or for engines of another stage or model."""
    pools = {
        one.document.name: (one, one.document.model.spec)
        for one in documents
        if isinstance(one.document.model, EnginePool)
    }
    for placed, route in _routes(documents):
        targets = [(("spec", "pools", number, "pool"), one.pool) for number, one in enumerate(route.spec.pools)]
        spare = [(("spec", "fallbacks", number), name) for number, name in enumerate(route.spec.fallbacks)]
        for steps, name in (*targets, *spare):
            if name in pools and pools[name][1].stage is Stage.PREFILL:
                yield _refusal(
                    placed,
                    "SG047",
                    steps,
                    f"pool {name} has stage prefill, at {pools[name][0].place('spec', 'stage')}: no caller's "
                    "request may run there",
                    hint="name the decode pool here, and this pool in spec.prefill",
                )
        prefill = route.spec.prefill
        if prefill is None or prefill.pool not in pools:
            continue
        there, spec = pools[prefill.pool]
        if spec.stage is not Stage.PREFILL:
            yield _refusal(
                placed,
                "SG047",
                ("spec", "prefill", "pool"),
                f"pool {prefill.pool}, at {there.place('spec')}, has no stage: prefill",
                hint="set stage: prefill in the pool, or name another one",
            )
        for steps, name in targets:
            if name not in pools or pools[name][1].stage is Stage.PREFILL:
                continue
            target, decode = pools[name]
            if decode.stage is None:
                yield _refusal(
                    placed,
                    "SG047",
                    steps,
                    f"pool {name}, at {target.place('spec')}, has no stage: decode, and the route has prefill",
                    hint="put a routing side-car in front of its engines and set stage: decode, or remove prefill",
                )
            if decode.model != spec.model:
                yield _refusal(
                    placed,
                    "SG047",
                    ("spec", "prefill", "pool"),
                    f"pool {prefill.pool} prefills for model {spec.model}, and pool {name} decodes {decode.model}",
                    hint="use pools with the same model: the KV cache of another one is of no use",
                )
    yield from _prefill_pairs(documents)


def _prefill_pairs(documents: Sequence[LocatedDocument]) -> Iterator[PolicyError]:
    """Decode pools with two prefill pools: endpoints of an engine have one list of prefill engines."""
    first: dict[str, tuple[LocatedDocument, str]] = {}
    for placed, route in _routes(documents):
        prefill = route.spec.prefill
        for share in () if prefill is None else route.spec.pools:
            other, pool = first.setdefault(share.pool, (placed, prefill.pool if prefill else ""))
            if prefill is not None and pool != prefill.pool:
                yield _refusal(
                    placed,
                    "SG047",
                    ("spec", "prefill", "pool"),
                    f"pool {prefill.pool} prefills for pool {share.pool} here, and {pool} in route "
                    f"{other.document.name}, at {other.place('spec', 'prefill')}",
                    hint="name the same prefill pool in all routes to a decode pool",
                )
                break


def _layered(documents: Sequence[LocatedDocument]) -> Iterator[PolicyError]:
    """Fields that contradict each other once the policies of a pool are merged."""
    policies = {one.document.name: one for one in documents if isinstance(one.document.model, ResiliencePolicy)}
    models = {name: one.document.model for name, one in policies.items()}
    known: Mapping[str, ResiliencePolicy] = {
        name: model for name, model in models.items() if isinstance(model, ResiliencePolicy)
    }
    stacks = set(layers((pool for model in known.values() for pool in model.spec.pools), known).values())
    if DEFAULT in known:
        stacks.add((DEFAULT,))
    reported: set[tuple[str, tuple[Step, ...]]] = set()
    for stack in sorted(stacks):
        spec = effective(stack, known)
        for steps, low, high in _ordered(spec):
            name = next((one for one in reversed(stack) if _wrote(policies[one], steps[-1])), stack[-1])
            if (name, steps[-1]) not in reported:
                reported.add((name, steps[-1]))
                yield _refusal(
                    policies[name],
                    "SG041",
                    steps[-1],
                    f"{high} is below {path_text(steps[0])}, which is {low}",
                    found=high,
                    allowed=f"at least {low}",
                    hint="" if len(stack) == 1 else f"the values are from policies {' and '.join(stack)}",
                )


def _waits(documents: Sequence[LocatedDocument]) -> Iterator[PolicyError]:
    """Written waits that leave too little of the deadline for the answer; default waits draw a warning (SG106)."""
    policies = {one.document.name: one for one in documents if isinstance(one.document.model, ResiliencePolicy)}
    known = {
        name: one.document.model
        for name, one in policies.items()
        if isinstance(one.document.model, ResiliencePolicy)
    }
    pools = {
        one.document.name: one.document.model.spec
        for one in documents
        if isinstance(one.document.model, EnginePool)
    }
    steps = ("spec", "limits", "maxWait")
    stacks = layers(pools, known)
    specs = {stack: effective(stack, known) for stack in set(stacks.values())}
    reported: set[str] = set()
    for pool, stack in stacks.items():
        writer = next((name for name in reversed(stack) if _wrote(policies[name], steps)), None)
        limits, timeouts = specs[stack].limits, specs[stack].timeouts
        totals = [total for total in (timeouts.streaming.total, timeouts.non_streaming.total) if total]
        if writer is None or writer in reported or not totals:
            continue
        if limits.concurrent_per_slot is not None or limits.max_concurrent is not None:
            continue  # maxWait has no effect, a warning (SG126)
        longest_s = pools[pool].longest_s
        most_s = max(0.0, WAIT_SHARE * (min(totals) - longest_s))
        if limits.max_wait > most_s:
            reported.add(writer)
            yield _refusal(
                policies[writer],
                "SG042",
                steps,
                f"pool {pool}: requests may wait {format_duration(limits.max_wait)} of their "
                f"{format_duration(min(totals))} and then run up to {format_duration(longest_s)}",
                found=format_duration(limits.max_wait),
                allowed=f"at most {format_duration(round(most_s, 3))}, "
                f"{WAIT_SHARE:g} x (total - longestServiceTime)",
                hint="lower maxWait, raise total of timeouts.streaming or timeouts.nonStreaming, or set the "
                "longestServiceTime of the pool if it is shorter",
            )


def _wrote(placed: LocatedDocument, steps: tuple[Step, ...]) -> bool:
    return placed.document.at(*steps) != placed.document.at(*steps[:-1])


def _ordered(spec: ResilienceSpec) -> Iterator[tuple[tuple[tuple[Step, ...], tuple[Step, ...]], str, str]]:
    backoff = spec.retries.backoff
    if backoff.max < backoff.base:
        base = ("spec", "retries", "backoff", "base")
        longest = ("spec", "retries", "backoff", "max")
        yield (base, longest), format_duration(backoff.base), format_duration(backoff.max)
    breaker = spec.breaker
    within = ("spec", "breaker")
    if breaker.max_cooldown < breaker.cooldown:
        cooldowns = ((*within, "cooldown"), (*within, "maxCooldown"))
        yield cooldowns, format_duration(breaker.cooldown), format_duration(breaker.max_cooldown)
    if breaker.error_rate_percent and breaker.window_calls < breaker.min_calls:
        # The window never holds that many calls: the error rate would never count.
        yield ((*within, "minCalls"), (*within, "windowCalls")), str(breaker.min_calls), str(breaker.window_calls)
