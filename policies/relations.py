"""Check relations between documents: names, references, and what several say of one pool or port."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from policies.document import Spec
from policies.document_relations import matches_fields, problem_in, repeated
from policies.findings import PolicyError, did_you_mean
from policies.listener import Listener
from policies.merge import effective, layers
from policies.origin import Step, origin, path_text
from policies.pool import EnginePool
from policies.quantity import format_duration
from policies.remote_prefill import Stage
from policies.resilience import DEFAULT, WAIT_SHARE, ResiliencePolicy, ResilienceSpec
from policies.route import Match, ModelRoute
from policies.validated_document import ValidatedDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedDocument:
    """A document and the file it is in."""

    file: str
    document: ValidatedDocument

    def place(self, *steps: Step) -> str:
        """``file:line:column`` of a field."""
        return str(origin(self.file, self.document.at(*steps)))


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
                and matches_fields(other)
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
    return problem_in(placed.document, code, steps, message, **details).error(placed.file)


def _duplicates(documents: Sequence[LocatedDocument]) -> Iterator[PolicyError]:
    for number, before in repeated(one.document.key for one in documents):
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
            ("deadline", listener.deadline, known.deadline),
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
    return match.path_prefix, headers, match.model, match.stream, match.tokens_above


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
