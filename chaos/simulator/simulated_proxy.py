"""A proxy in simulated time: selects engines, retries, hedges, refuses, ejects and reports, as Envoy does.

It applies its last configuration and decides nothing that the control plane decides.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from chaos.history.history_events import ProxySample
from chaos.simulator.access_log_entry import (
    AccessLogEntry,
    answered_entry,
    attempt_entry,
    refused_entry,
    request_entry,
)
from chaos.simulator.caller_rules import DeadlineRoute
from chaos.simulator.hash_table import key_hash
from chaos.simulator.header_rules import Headers, grpc_timeout_s, with_mutations
from chaos.simulator.proxied_request import (
    NO_FIELDS,
    DownstreamCaller,
    ProxiedRequest,
    SentFields,
    UpstreamAttempt,
    is_retriable_reset,
    is_retriable_status,
)
from chaos.simulator.proxy_config import EMPTY_CONFIG, NO_LIMIT, ProxyConfig, RouteConfig, route_settings
from chaos.simulator.quota_buckets import SimulatedQuotaBuckets
from chaos.simulator.simulated_clock import SimulatedClock
from chaos.simulator.simulated_cluster import SimulatedCluster
from chaos.simulator.simulated_engine import CallRefusedError, EngineRequest, SimulatedEngine
from chaos.simulator.simulated_sidecar import SidecarCall, sidecar_call
from chaos.testbed.request_shape import RequestKind
from policies.deadline import GRPC_TIMEOUT_HEADER
from xds_server.model.pool_traffic import DeadlineResult
from xds_server.telemetry.attempt_outcome import DEADLINE_EXPIRED, NO_HOST, OVERFLOW, TIMEOUT
from xds_server.telemetry.tenant_counts import QuotaResult
from xds_server.translate.deadlines import DEADLINE_REASON
from xds_server.translate.request_fields import ESTIMATED_TOKENS_HEADER
from xds_server.translate.tenant_quotas import QUOTA_REASON
from xds_server.translate.tenant_share_limits import SHARE_REASON, SHARE_STATUS

_CONNECT_FAILED: Final = frozenset({"upstream_connection_failure"})
_TERMINATED: Final = frozenset({"upstream_connection_termination"})
_PROTOCOL_ERROR: Final = frozenset({"upstream_protocol_error"})
_SILENT: Final = frozenset({"stream_idle_timeout"})
_LATE: Final = frozenset({TIMEOUT})
_NO_FLAGS: Final[frozenset[str]] = frozenset()


class SimulatedProxy:
    """Callers use ``send_request``, pushes ``apply_config``; telemetry reads ``entries`` and ``load``."""

    def __init__(
        self,
        timeline: SimulatedClock,
        name: str,
        zone: str,
        engines: Mapping[str, Mapping[str, SimulatedEngine]],
        *,
        rng: random.Random,
        region: str = "",
    ) -> None:
        self.name = name
        self.zone = zone
        self.region = region
        self.entries: list[AccessLogEntry] = []
        self.retries = 0
        self.refused = 0
        self._timeline = timeline
        self._engines = engines
        self._by_name = {name: engine for pool in engines.values() for name, engine in pool.items()}
        self._rng = rng
        self._told: ProxyConfig = EMPTY_CONFIG
        self._quotas: SimulatedQuotaBuckets | None = None
        self._clusters: dict[str, SimulatedCluster] = {}

    @property
    def now_s(self) -> float:
        """Current simulated time."""
        return self._timeline.now_s

    def apply_config(self, told: ProxyConfig) -> None:
        """Apply a configuration; requests in flight continue, except on engines to be cut."""
        before, self._told = self._told, told
        if told.quotas is None:
            self._quotas = None
        elif told.quotas != before.quotas or route_settings(told) != route_settings(before):
            # A change of the port's routes fills the buckets again.
            self._quotas = SimulatedQuotaBuckets(told.quotas, self.now_s)
        for pool, said in told.clusters.items():
            if pool not in self._clusters:
                self._clusters[pool] = SimulatedCluster(self._timeline, said, self._engines[pool], self._rng)
            self._clusters[pool].apply_config(told.localities[pool], told.limits[pool])
        for pool, engine in sorted(told.cut - before.cut):
            for one in self._clusters[pool].held(engine):
                if not one.done:
                    self._cancel(one)
                    self.on_reset(one)

    # -- requests ------------------------------------------------------------------------------------------

    def send_request(
        self,
        request_id: str,
        caller: DownstreamCaller,
        kind: RequestKind,
        *,
        prompt_tokens: int,
        max_tokens: int,
        sent: SentFields = NO_FIELDS,
    ) -> ProxiedRequest | None:
        """Accept a request; None if answered at once."""
        headers = with_mutations(self._told.mutations, sent.headers)
        if sent.estimated_tokens and self._told.parts is not None:
            headers = {**headers, ESTIMATED_TOKENS_HEADER: f"{sent.estimated_tokens:.0f}"}
        if not self._within_quota(headers, sent.estimated_tokens):
            self.entries.append(refused_entry("", headers, limit=QuotaResult.REFUSED, now_s=self.now_s))
            _answer_at_once(caller, 429, QUOTA_REASON)
            return None
        rules = self._told.rules.get(kind)
        if rules is None:
            _answer_at_once(caller, 404, "no-route")
            return None
        too_long = rules.max_tokens is not None and max_tokens > rules.max_tokens
        refuse = rules.refuse or ("too-long-now" if too_long and not rules.reduces_answers else "")
        if refuse:
            _answer_at_once(caller, 503, refuse)
            return None
        chosen = next((one for one in rules.deadlines if self._takes(one, headers)), None)
        refused = self._refused(rules, chosen, headers)
        if refused is not None:
            self.entries.append(refused)
            status, reason = (SHARE_STATUS, SHARE_REASON) if refused.limit else (503, DEADLINE_REASON)
            _answer_at_once(caller, status, reason)
            return None
        deadline_s = None
        if chosen is not None and chosen.longest_s is not None:
            rules = _limited_rules(rules, chosen)
            deadline_s = _deadline_s(headers, chosen.longest_s)
        ask = ProxiedRequest(
            request_id=request_id,
            kind=kind,
            streaming=kind.streaming,
            batch=rules.batch,
            prompt_tokens=prompt_tokens,
            max_tokens=rules.max_tokens if too_long and rules.max_tokens is not None else max_tokens,
            caller=caller,
            rules=rules,
            pool=self._pool(rules),
            began_s=self.now_s,
            retries_left=rules.attempts,
            prefiller=self._rng.choice(rules.prefillers) if rules.prefillers else "",
            session=sent.session,
            kept_by=self._kept(rules, sent.session, sent.kept_by),
            headers=headers,
            hurried=deadline_s is not None,
        )
        if rules.total_s:
            ask.timers.append(self._timeline.after(rules.total_s, lambda: self._over(ask, "response_timeout")))
        # Envoy's limit from the caller's header replaces that of the route.
        longest_s = rules.stream_total_s if deadline_s is None else deadline_s
        if longest_s or deadline_s is not None:
            ask.timers.append(self._timeline.after(longest_s, lambda: self._over(ask, DEADLINE_EXPIRED)))
        self._arm_idle(ask)
        self._try(ask)
        return None if ask.done else ask

    def _within_quota(self, headers: Headers, tokens: float) -> bool:
        quotas, parts = self._quotas, self._told.parts
        return quotas is None or parts is None or quotas.admits(parts.metadata(headers, tokens), self.now_s)

    def _takes(self, route: DeadlineRoute, headers: Headers) -> bool:
        """Whether a route takes this request; one that refuses takes a part, which the runtime layer has."""
        if not route.takes(headers):
            return False
        return not route.refuses or self._hits(self._told.percentages.get(route.runtime_key, 0.0))

    def _refused(
        self, rules: RouteConfig, chosen: DeadlineRoute | None, headers: Headers
    ) -> AccessLogEntry | None:
        """Entry of a request that its route refuses for its deadline, or because its tenant is above its share."""
        # It counts for the first pool of the route.
        pool = next(iter(rules.weights))
        if chosen is not None and chosen.refuses:
            return refused_entry(pool, headers, late=DeadlineResult.REFUSED, now_s=self.now_s)
        shares = rules.shares
        if shares is not None and self._hits(shares.refused_percent(headers, self._told.percentages)):
            return refused_entry(pool, headers, limit=QuotaResult.OVER_SHARE, now_s=self.now_s)
        return None

    def _hits(self, percent: float) -> bool:
        return percent > 0 and 100 * self._rng.random() < percent

    def leave(self, ask: ProxiedRequest) -> None:
        """The caller left: cancel its attempts."""
        if not ask.done:
            for one in tuple(ask.tries):
                self._drop(one, flags=_NO_FLAGS)
            self._finish(ask)

    def _kept(self, rules: RouteConfig, session: str, engine: str) -> str:
        """The engine that the request asks for: that of its session, unless the session is one that leaves it."""
        percent = 0.0 if rules.sessions is None else rules.sessions.get(engine, 0.0)
        return engine if key_hash(session) % 100 < percent else ""

    def _pool(self, rules: RouteConfig) -> str:
        pools = list(rules.weights)
        weights = [rules.weights[pool] for pool in pools]
        return pools[0] if len(pools) == 1 or not any(weights) else self._rng.choices(pools, weights)[0]

    def _next_pool(self, ask: ProxiedRequest) -> str:
        """Pool of the next attempt: for a retry, Envoy draws among the unused entries of the current route."""
        rules = self._told.rules.get(ask.kind, ask.rules)
        if not ask.made or not rules.exits:
            return ask.pool
        left = {
            pool: entry.weight * (entry.entries - ask.entries[pool])
            for pool, entry in rules.exits.items()
            if entry.entries > ask.entries[pool]
        }
        return self._rng.choices(list(left), list(left.values()))[0] if left else ask.pool

    def _try(self, ask: ProxiedRequest) -> None:
        pool = self._next_pool(ask)
        ask.entries[pool] += 1
        cluster, first = self._clusters[pool], not ask.made
        engine = cluster.choose(
            ask.tried if ask.rules.elsewhere else (),
            key=key_hash(ask.session) if ask.session and ask.rules.keyed else None,
            # A retry asks for no engine.
            wanted=ask.kept_by if first and pool in ask.rules.weights else "",
            among=ask.rules.among,
        )
        if engine is None:
            self._refuse(ask, "no-engine", NO_HOST)
            return
        ask.made += 1
        ask.tried.add(engine)
        one = UpstreamAttempt(self, ask, pool, engine, ask.made)
        if cluster.full(batch=ask.batch) or cluster.no_connection(engine):
            self._log(one, flags=frozenset({OVERFLOW}), complete=False)
            self._refuse(ask, "overload", "")
            return
        ask.tries.append(one)
        cluster.opened(one)
        self.retries += not first
        rules = ask.rules
        if rules.per_try_s:
            one.timer = self._timeline.after(rules.per_try_s, lambda: self._per_try(one))
        if rules.per_try_idle_s:
            one.idle = self._timeline.after(rules.per_try_idle_s, lambda: self._silent(one))
        asked = EngineRequest(
            request_id=ask.request_id,
            number=one.number,
            streaming=ask.streaming,
            prompt_tokens=ask.prompt_tokens,
            max_tokens=ask.max_tokens,
            session=ask.session,
        )
        cluster.connection(one, lambda: self._send(one, asked))

    def _send(self, one: UpstreamAttempt, asked: EngineRequest) -> None:
        cluster = self._clusters[one.pool]
        named = one.ask.prefiller or self._drawn_prefiller(one)
        one.named = bool(named)
        try:
            if named:
                one.call = sidecar_call(cluster.engines[one.engine], self._by_name[named], asked, one)
            else:
                one.call = cluster.engines[one.engine].call(asked, one)
        except CallRefusedError:
            self._lost(one, _CONNECT_FAILED, connected=False)
            return
        cluster.connected(one.engine)

    def _drawn_prefiller(self, one: UpstreamAttempt) -> str:
        """The prefill engine that this attempt names, drawn by weight; empty for none."""
        listed = self._told.prefillers.get((one.pool, one.engine), ())
        rules = one.ask.rules
        if not listed or one.ask.prompt_tokens <= rules.prefill_above:
            return ""
        if self._rng.random() * 100 >= rules.prefill_percent:
            return ""
        return self._rng.choices([name for name, _ in listed], [weight for _, weight in listed])[0]

    def fail_request(self, pool: str, status: int) -> None:
        """A request that a healthy engine answers at once with this status, such as 404 for a wrong path."""
        cluster = self._clusters[pool]
        engine = cluster.choose(())
        if engine is not None:
            cluster.answered(engine, status)
            self.entries.append(answered_entry(pool, engine, status, now_s=self.now_s))

    # -- answers -------------------------------------------------------------------------------------------

    def on_headers(self, one: UpstreamAttempt, retry_after_s: float | None) -> None:
        """Response headers of an engine."""
        ask = one.ask
        self._clusters[one.pool].answered(one.engine, one.status)
        if one.timer is not None:
            one.timer.cancel()
            one.timer = None
        self.on_data(one)
        if ask.final is None and is_retriable_status(ask.rules, one.status) and self._again(one, retry_after_s):
            return
        if ask.final is None and one.status >= 500 and len(ask.tries) > 1:
            # A failed hedge; the other attempt may still win.
            self._end(one, complete=True)
            return
        if ask.final is None:
            ask.final = one
            for other in tuple(ask.tries):
                if other is not one:
                    self._drop(other, flags=_LATE)
            self._release_retry(ask)
        ask.caller.headers(
            one.status,
            fallback=one.pool if one.pool in ask.rules.other_models else "",
            session=self._new_session(ask, one),
        )

    def _new_session(self, ask: ProxiedRequest, one: UpstreamAttempt) -> str:
        """The engine that the answer names; empty if the session stays. A retry moves no session."""
        if ask.rules.sessions is None or one.pool not in ask.rules.weights:
            return ""
        return "" if ask.kept_by and (ask.kept_by == one.engine or one.number != 1) else one.engine

    def on_data(self, one: UpstreamAttempt) -> None:
        """Data arrived."""
        if one.idle is not None:
            one.idle.cancel()
            one.idle = self._timeline.after(one.ask.rules.per_try_idle_s or 0.0, lambda: self._silent(one))
        self._arm_idle(one.ask)

    def on_ended(self, one: UpstreamAttempt, *, failed_inside: bool = False) -> None:
        """The answer is complete."""
        ask = one.ask
        self._end(one, complete=True)
        if ask.final is one:
            self._finish(ask)
            if failed_inside:
                ask.caller.failed_inside()
            else:
                ask.caller.ended()

    def on_reset(self, one: UpstreamAttempt) -> None:
        """The connection was reset."""
        self._lost(one, _PROTOCOL_ERROR if one.status else _TERMINATED, connected=True)

    def _per_try(self, one: UpstreamAttempt) -> None:
        one.timer = None
        ask = one.ask
        if one.done or one.status:
            return
        if ask.rules.hedges:
            if ask.retries_left > 0 and self._clusters[ask.pool].may_retry(batch=ask.batch):
                ask.retries_left -= 1
                self._hold_retry(ask)
                self._try(ask)
            return
        self._cancel(one)
        self._lost(one, _LATE, connected=True)

    def _silent(self, one: UpstreamAttempt) -> None:
        one.idle = None
        if not one.done:
            self._cancel(one)
            self._lost(one, _SILENT, connected=True)

    def _over(self, ask: ProxiedRequest, details: str) -> None:
        """A timeout of the whole request has expired."""
        if ask.done:
            return
        last = ask.tries[-1] if ask.tries else None
        for one in tuple(ask.tries):
            self._drop(one, flags=_NO_FLAGS)
        self._log_request(ask, details=details, engine="" if last is None else last.engine)
        self._answer_or_cut(ask, 504, "timeout")

    def _lost(self, one: UpstreamAttempt, flags: frozenset[str], *, connected: bool) -> None:
        """An attempt ended without a complete answer."""
        ask, answered = one.ask, one.status
        # A failure after the headers does not count against the host, except a stall.
        if not answered or flags is _SILENT:
            self._clusters[one.pool].failed(one.engine)
        self._end(one, flags=flags)
        if ask.final is one:
            self._finish(ask)
            ask.caller.broken()
            return
        if ask.done or ask.final is not None:
            return
        if is_retriable_reset(ask.rules.retried, connected=connected) and self._schedule(ask, None):
            return
        if not ask.tries and not ask.backing_off:
            reason = "timeout" if flags in (_LATE, _SILENT) else "engine-reset" if connected else "connect-failure"
            self._answer_or_cut(ask, 504 if reason == "timeout" else 503, reason)

    def _again(self, one: UpstreamAttempt, retry_after_s: float | None) -> bool:
        """Retry after an answer if the budget allows; then drop the answer."""
        if not self._schedule(one.ask, retry_after_s):
            return False
        self._end(one, complete=True)
        return True

    def _schedule(self, ask: ProxiedRequest, retry_after_s: float | None) -> bool:
        """Schedule a retry; False if none is left or the budget is used up."""
        if ask.retries_left <= 0 or ask.done:
            return False
        self._release_retry(ask)
        if not self._clusters[ask.pool].may_retry(batch=ask.batch):
            self.refused += 1
            return False
        ask.retries_left -= 1
        self._hold_retry(ask)
        rules = ask.rules
        most_s = rules.retry_after_most_s
        if retry_after_s is not None and most_s is not None and retry_after_s <= most_s:
            wait_s = retry_after_s * (1 + self._rng.random() / 2)
        else:
            made = rules.attempts - ask.retries_left
            wait_s = self._rng.random() * min(rules.backoff_base_s * (2**made - 1), rules.backoff_max_s)
        ask.backing_off = True

        def again() -> None:
            ask.backing_off = False
            if not ask.done:
                self._try(ask)

        ask.timers.append(self._timeline.after(wait_s, again))
        return True

    def _hold_retry(self, ask: ProxiedRequest) -> None:
        if not ask.holds_retry:
            ask.holds_retry = True
            self._clusters[ask.pool].retrying(1, batch=ask.batch)

    def _release_retry(self, ask: ProxiedRequest) -> None:
        if ask.holds_retry:
            ask.holds_retry = False
            self._clusters[ask.pool].retrying(-1, batch=ask.batch)

    # -- ends ----------------------------------------------------------------------------------------------

    def _refuse(self, ask: ProxiedRequest, reason: str, flag: str) -> None:
        """No engine got this attempt; the request ends unless another attempt runs."""
        if ask.tries:
            return
        if flag:
            self._log_request(ask, flags=frozenset({flag}))
        self._finish(ask)
        ask.caller.headers(503, refusal=reason)
        ask.caller.ended()

    def _answer_or_cut(self, ask: ProxiedRequest, status: int, reason: str) -> None:
        begun = ask.final is not None
        self._finish(ask)
        if begun:
            ask.caller.broken()
        else:
            ask.caller.headers(status, refusal=reason)
            ask.caller.ended()

    def _finish(self, ask: ProxiedRequest) -> None:
        ask.done = True
        self._release_retry(ask)
        for timer in ask.timers:
            timer.cancel()
        if ask.idle is not None:
            ask.idle.cancel()

    def _arm_idle(self, ask: ProxiedRequest) -> None:
        if ask.rules.idle_s:
            if ask.idle is not None:
                ask.idle.cancel()
            ask.idle = self._timeline.after(ask.rules.idle_s, lambda: self._over(ask, "stream_idle_timeout"))

    def _drop(self, one: UpstreamAttempt, *, flags: frozenset[str]) -> None:
        """Cancel an attempt that is no longer needed."""
        self._cancel(one)
        self._end(one, flags=flags)

    def _cancel(self, one: UpstreamAttempt) -> None:
        if isinstance(one.call, SidecarCall):
            one.call.leave()
        elif one.call is not None:
            self._engines[one.pool][one.engine].leave(one.call)

    def _end(self, one: UpstreamAttempt, *, flags: frozenset[str] = _NO_FLAGS, complete: bool = False) -> None:
        if one.done:
            return
        one.done = True
        one.disarm()
        ask = one.ask
        if one in ask.tries:
            ask.tries.remove(one)
            self._clusters[one.pool].closed(one)
        self._log(one, flags=flags, complete=complete)

    # -- reporting -------------------------------------------------------------------------------------------

    def _log(self, one: UpstreamAttempt, *, flags: frozenset[str], complete: bool) -> None:
        self.entries.append(attempt_entry(one, flags=flags, complete=complete, now_s=self.now_s))

    def _log_request(
        self, ask: ProxiedRequest, *, flags: frozenset[str] = _NO_FLAGS, details: str = "", engine: str = ""
    ) -> None:
        self.entries.append(request_entry(ask, engine, flags=flags, details=details, now_s=self.now_s))

    def load(self) -> Mapping[str, Mapping[str, tuple[int, int]]]:
        """Load report by pool and engine: requests in progress, and issued since the last report."""
        return {pool: cluster.load() for pool, cluster in self._clusters.items()}

    def sample(self, pool: str) -> ProxySample:
        """Sample of a pool, as from Envoy's admin page."""
        cluster = self._clusters[pool]
        limit = cluster.limits.interactive
        return ProxySample(
            at_s=self.now_s - self._timeline.began_s,
            proxy=self.name,
            in_flight={engine: count for engine, count in cluster.active.items() if count},
            sent=dict(cluster.sent),
            ejected=cluster.ejected,
            unhealthy=tuple(host.engine for zone in cluster.localities for host in zone.hosts if not host.healthy),
            ceiling=None if limit == NO_LIMIT else float(limit),
            retries=self.retries,
            refused=self.refused,
        )


def _answer_at_once(caller: DownstreamCaller, status: int, reason: str) -> None:
    caller.headers(status, refusal=reason)
    caller.ended()


def _limited_rules(rules: RouteConfig, chosen: DeadlineRoute) -> RouteConfig:
    """The rules, with the attempts that the route for this deadline allows."""
    if (rules.hedges, rules.per_try_s) == (chosen.hedges, chosen.per_try_s):
        return rules
    return replace(rules, hedges=chosen.hedges, per_try_s=chosen.per_try_s, attempts=chosen.attempts)


def _deadline_s(headers: Headers, longest_s: float) -> float | None:
    """The deadline in force; None for a request without one."""
    stated_s = grpc_timeout_s(headers.get(GRPC_TIMEOUT_HEADER))
    return min(stated_s, longest_s) if stated_s is not None and longest_s else stated_s
