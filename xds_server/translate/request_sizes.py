"""What a request's estimated tokens change: its time limits, retries and hedges, in Envoy itself.

Retries and hedges are routes of their own in front of the others, with a condition on the estimate. A time limit
is a number for each request: the script that reads the body takes the rule from the metadata of the chosen route
and writes it into ``x-envoy-upstream-rq-timeout-ms`` and ``x-envoy-upstream-rq-per-try-timeout-ms``, which callers
cannot send. So a learned time changes routes and never the listener.

Alternatives and observations: docs/adr/0055-limits-by-request-size.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import Metadata
from envoy_data_plane.google.protobuf import Struct, Value

from policies.resilience import ResilienceSpec
from policies.resilience.retries import LargeRetries
from xds_server.decide.decisions import TokenTimeLimit
from xds_server.translate.effective_spec import at_most_once_spec, unhedged_spec
from xds_server.translate.request_fields import FIELDS_FILTER, TIME_LIMIT_KEY
from xds_server.translate.retry_policy import hedge_delay_s, longest_pause_s

_MS: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRule:
    """The rules of requests of more tokens than ``above``; None: of all others.

    ``full``: only while the pool has no spare capacity. ``gated``: the first-token gate's limits apply.
    """

    spec: ResilienceSpec
    gated: bool
    above: int | None = None
    full: bool = False

    @property
    def name(self) -> str:
        """Part of the Envoy route's name."""
        if self.above is None:
            return ""
        return f"/above-{self.above}{'-full' if self.full else ''}"


def depends_on_size(spec: ResilienceSpec) -> bool:
    """Whether requests of this policy need an estimate of their tokens."""
    by_tokens, large, most = spec.timeouts.non_streaming.by_tokens, spec.retries.large, spec.hedging.max_tokens
    return by_tokens.enabled or large.tokens_above is not None or most is not None


def same_for_all_sizes(spec: ResilienceSpec) -> ResilienceSpec:
    """These rules without those that depend on size: of proxies that estimate no tokens."""
    return spec.model_copy(
        update={
            "retries": spec.retries.model_copy(update={"large": LargeRetries()}),
            "hedging": spec.hedging.model_copy(update={"max_tokens": None}),
        }
    )


def size_rules(spec: ResilienceSpec, *, gated: bool) -> Iterable[SizeRule]:
    """The rules by size, in matching order: the largest requests first, all others last."""
    large, most = spec.retries.large, spec.hedging.max_tokens
    bounds = {one for one in (large.tokens_above, most) if one is not None} if _repeats(spec) else ()
    for above in sorted(bounds, reverse=True):
        rules = unhedged_spec(spec) if most is not None and above >= most and spec.hedging.enabled else spec
        if large.tokens_above is not None and above >= large.tokens_above:
            never = at_most_once_spec(rules)
            few = _with_attempts(rules, large.attempts)
            if few != never and _repeats(few):
                yield SizeRule(spec=never, gated=False, above=above, full=True)
            rules = few
        if rules != spec:
            # Without a retry no try is given up for a late first token.
            yield SizeRule(spec=rules, gated=gated and _repeats(rules), above=above)
    yield SizeRule(spec=spec, gated=gated)


def _with_attempts(spec: ResilienceSpec, attempts: int) -> ResilienceSpec:
    """These rules with no more retries and hedges; 0: only tries that no engine has seen are repeated."""
    if not attempts:
        return at_most_once_spec(spec)
    changes: dict[str, object] = {}
    if spec.retries.attempts > attempts:
        changes["retries"] = spec.retries.model_copy(update={"attempts": attempts})
    if spec.hedging.enabled and spec.hedging.per_request > attempts:
        changes["hedging"] = spec.hedging.model_copy(update={"per_request": attempts})
    return spec.model_copy(update=changes) if changes else spec


def _repeats(spec: ResilienceSpec) -> bool:
    """Whether a request of these rules may run twice."""
    return spec.hedging.enabled or (spec.retries.attempts > 0 and spec != at_most_once_spec(spec))


def full_key(pool: str) -> str:
    """Runtime key of the percentage of large requests that are not retried for lack of spare capacity."""
    return f"switchgear.large_retries_off.{pool}"


def time_limit_metadata(
    spec: ResilienceSpec, limit: TokenTimeLimit | None, *, streaming: bool, hurried: bool
) -> Metadata | None:
    """Metadata of a route with the rule for the script, in milliseconds; None without a limit by tokens.

    ``hurried``: requests whose deadline leaves no time for another try.
    """
    if limit is None or streaming:
        return None
    hedged = not hurried and hedge_delay_s(spec, streaming=False, gated=False) is not None
    retries = spec.hedging.per_request if hedged else spec.retries.attempts
    numbers = {
        "base": limit.wait_s * _MS,
        "per_token": limit.per_token_s * _MS,
        "least": spec.timeouts.non_streaming.by_tokens.min * _MS,
        "most": spec.timeouts.non_streaming.total * _MS,
        "tries": 1.0 + retries,
        "pauses": retries * longest_pause_s(spec.retries) * _MS,
        # The timer of a try is the delay of hedges, and pointless without another try.
        "each": float(bool(retries) and not hedged and not hurried),
    }
    rule = Struct(fields={key: Value(number_value=round(value, 3)) for key, value in numbers.items()})
    return Metadata(filter_metadata={FIELDS_FILTER: Struct(fields={TIME_LIMIT_KEY: Value(struct_value=rule)})})
