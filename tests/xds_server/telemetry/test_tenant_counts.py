"""Requests of tenants by what their quota did, from access logs."""

from pathlib import Path
from typing import Any

import pytest

from policies.route import MAX_TOKENS_HEADER
from tests.xds_server.telemetry.conftest import documents, policies_of
from tests.xds_server.telemetry.test_als_and_lrs_streams import log
from xds_server.admin_api.tenant_types import TenantTraffic
from xds_server.model.pool_traffic import TenantUses
from xds_server.telemetry.access_log_service import AccessLogs, record_entries
from xds_server.telemetry.pool_directory import build_directory
from xds_server.telemetry.tenant_counts import FAULT_INJECTED, RATE_LIMITED, tenants_by_port
from xds_server.telemetry.traffic_store import TrafficStore
from xds_server.translate.access_log_config import PORT_TAG
from xds_server.translate.tenant_quotas import OVER_QUOTA_HEADER

NOW_S = 1000.0
TRY, REQUEST = 9, 6
TENANTS = {
    "header": "x-tenant",
    "trustHeader": True,
    "named": [{"name": "a", "requests": 10}],
    "others": {"requests": 1},
}


def with_tenants(folder: Path, tenants: dict[str, Any] | None) -> Any:
    found = documents()
    for one in found:
        if one["metadata"]["name"] == "talk" and tenants is not None:
            one["spec"]["listener"]["tenants"] = tenants
    return policies_of(folder, found)


@pytest.fixture
def counting(tmp_path: Path) -> TrafficStore:
    book, policies = TrafficStore(), with_tenants(tmp_path, TENANTS)
    book.set_directory(build_directory(policies, {}))
    book.tenants.set_ports(tenants_by_port(policies))
    return book


def record(
    book: TrafficStore,
    tenant: str | None,
    *,
    port: str = "8080",
    over: bool = False,
    may_see: bool = True,
    **said: Any,
) -> None:
    entries = AccessLogs.FromString(log(**said)).http_logs.log_entry
    for entry in entries:
        entry.common_properties.custom_tags[PORT_TAG] = port
        if tenant is not None:
            entry.request.request_headers["x-tenant"] = tenant
        if over:
            entry.request.request_headers[OVER_QUOTA_HEADER] = "true"
    record_entries(book, "p1", entries, 2.0, NOW_S, may_see=lambda _pool: may_see)


def counts(book: TrafficStore, tenant: str = "a") -> tuple[float, float, float]:
    one = book.tenants.traffic(NOW_S)[8080, tenant]
    return one.admitted, one.over_quota, one.refused


def refused(**said: Any) -> dict[str, Any]:
    return {
        "kind": REQUEST,
        "flag": RATE_LIMITED,
        "code": 429,
        "attempt": "0",
        "route": "no-route",
        "cluster": "",
        **said,
    }


def test_request_is_counted_once_whatever_its_tries(counting: TrafficStore) -> None:
    record(counting, "a")
    record(counting, "a", attempt="2")
    assert counts(counting) == (2, 0, 0)
    rates = counting.tenants.traffic(NOW_S + 0.5)[8080, "a"]
    assert rates.served_per_s > 0
    assert counting.tenants.traffic(NOW_S + 60)[8080, "a"].served_per_s == 0


def test_shadow_counts_requests_over_the_quota(counting: TrafficStore) -> None:
    record(counting, "a", over=True)
    assert counts(counting) == (0, 2, 0)


def test_refused_request_counts_for_its_tenant_and_no_pool(counting: TrafficStore) -> None:
    record(counting, "a", **refused())
    assert counts(counting) == (0, 0, 2)
    record(counting, "a", **refused(route="talk/non-streaming"))
    assert counts(counting) == (0, 0, 4)
    assert all(sum(one.requests.values()) == 0 for one in counting.totals().values())


def test_request_shed_by_its_pool_was_within_its_quota(counting: TrafficStore) -> None:
    record(counting, "a", kind=REQUEST, code=503, attempt="0", flag="no_healthy_upstream", cluster="")
    assert counts(counting) == (2, 0, 0)


@pytest.mark.parametrize("tenant", ["b", "a,a", "", None])
def test_unknown_callers_share_one_place(counting: TrafficStore, tenant: str | None) -> None:
    record(counting, tenant)
    assert counts(counting, "others") == (2, 0, 0)
    assert set(counting.tenants.traffic(NOW_S)) == {(8080, "a"), (8080, "others")}


@pytest.mark.parametrize("port", ["8081", "x", ""])
def test_ports_without_tenants_count_nothing(counting: TrafficStore, port: str) -> None:
    record(counting, "a", port=port)
    record(counting, "a", port=port, **refused())
    assert counts(counting) == (0, 0, 0)


def test_proxy_that_sees_no_pool_of_the_port_counts_nothing(counting: TrafficStore) -> None:
    record(counting, "a", may_see=False, **refused())
    record(counting, "a", may_see=False)
    assert counts(counting) == (0, 0, 0)


def test_counts_follow_the_tenants_of_the_policies(counting: TrafficStore, tmp_path: Path) -> None:
    record(counting, "a")
    more = {**TENANTS, "named": [*TENANTS["named"], {"name": "b", "requests": 1}]}
    counting.tenants.set_ports(tenants_by_port(with_tenants(tmp_path, more)))
    assert counts(counting) == (2, 0, 0)
    assert counting.tenants.traffic(NOW_S)[8080, "b"] == TenantTraffic()
    counting.tenants.set_ports(tenants_by_port(with_tenants(tmp_path, None)))
    assert not counting.tenants.traffic(NOW_S)
    (family,) = counting.tenants.families()
    assert not family.samples


def test_metric_has_a_series_for_each_tenant_and_outcome(counting: TrafficStore) -> None:
    record(counting, "a", **refused())
    (family,) = counting.tenants.families()
    found = {tuple(sample.labels.values()): sample.value for sample in family.samples}
    assert found["8080", "a", "refused"] == 2
    assert len(found) == 8


def used(book: TrafficStore) -> dict[tuple[str, str], tuple[float, float]]:
    usage = book.tenants.usage
    return {(row.tenant, row.model): (row.requests, row.tokens) for day in usage.days for row in usage.rows(day)}


def test_only_answers_of_engines_are_usage(counting: TrafficStore) -> None:
    record(counting, "a")
    record(counting, "unknown")
    answered = used(counting)
    assert {tenant: requests for (tenant, _), (requests, _) in answered.items()} == {"a": 2, "others": 2}
    record(counting, "a", **refused())
    record(counting, "a", kind=REQUEST, code=503, attempt="0", flag="no_healthy_upstream", cluster="")
    record(counting, "a", code=500)
    record(counting, "a", code=0)
    record(counting, "a", code=400)
    record(counting, "a", may_see=False)
    assert used(counting) == answered


def test_retry_is_usage_once_when_it_is_answered(counting: TrafficStore) -> None:
    record(counting, "a", code=500)
    record(counting, "a", attempt="2")
    assert [requests for requests, _ in used(counting).values()] == [2]


@pytest.mark.parametrize(("asked", "tokens"), [("300", 325), ("", 125), ("x", 125), ("-5", 125)])
def test_tokens_stated_in_headers_are_usage(tmp_path: Path, asked: str, tokens: int) -> None:
    found = documents()
    for one in found:
        if one["metadata"]["name"] == "talk":
            limited = {"requests": 1, "perDay": {"tokens": 1000}}
            tenants = {**TENANTS, "named": [], "others": limited, "answerTokens": 100}
            one["spec"]["listener"] |= {"tenants": tenants, "requestFields": "headers"}
            one["spec"]["match"] = {}
    book, policies = TrafficStore(), policies_of(tmp_path, found)
    book.set_directory(build_directory(policies, {}))
    book.tenants.set_ports(tenants_by_port(policies))
    entries = AccessLogs.FromString(log()).http_logs.log_entry
    for entry in entries:
        entry.common_properties.custom_tags[PORT_TAG] = "8080"
        # As Envoy logs an attempt: what it received from the engine, and what it sent there.
        entry.request.request_body_bytes = 7
        entry.response.response_body_bytes = 100
        entry.request.request_headers[MAX_TOKENS_HEADER] = asked
    record_entries(book, "p1", entries, 1.0, NOW_S, may_see=lambda _pool: True)
    assert [one for _, one in used(book).values()] == [tokens]


@pytest.fixture
def sharing(tmp_path: Path) -> TrafficStore:
    """Counts where the tenants have fair shares of the pool of the route ``talk``."""
    book, policies = TrafficStore(), with_tenants(tmp_path, {**TENANTS, "fairShares": True})
    book.set_directory(build_directory(policies, {}))
    book.tenants.set_ports(tenants_by_port(policies))
    return book


def above_share(**said: Any) -> dict[str, Any]:
    return refused(**{"flag": FAULT_INJECTED, "route": "talk/non-streaming", **said})


def uses(book: TrafficStore) -> TenantUses:
    (found,) = [one.tenants for one in book.traffic(NOW_S + 1.0).values() if one.tenants is not None]
    return found


def test_refusal_above_the_share_is_demand_of_its_tenant_and_of_no_pool(sharing: TrafficStore) -> None:
    record(sharing, "a")
    record(sharing, "a", **above_share())
    one = sharing.tenants.traffic(NOW_S)[8080, "a"]
    assert (one.admitted, one.over_share, one.refused) == (2, 2, 0)
    use = uses(sharing).by_tenant[8080, "a"]
    assert use.arrivals_per_s == pytest.approx(2 * use.over_share_per_s)
    assert use.done_per_s == pytest.approx(use.over_share_per_s)
    assert use.busy > 0
    assert sum(sum(one.requests.values()) for one in sharing.totals().values()) == 2


def test_requests_refused_at_the_ceiling_are_demand_of_their_tenant(sharing: TrafficStore) -> None:
    record(sharing, "b", kind=REQUEST, code=503, attempt="0", flag="no_healthy_upstream", cluster="")
    use = uses(sharing).by_tenant[8080, "others"]
    assert use.arrivals_per_s == use.shed_per_s > 0


def test_tries_after_the_first_do_not_count_as_demand(sharing: TrafficStore) -> None:
    record(sharing, "a")
    record(sharing, "a", attempt="2")
    use = uses(sharing).by_tenant[8080, "a"]
    assert use.done_per_s == pytest.approx(2 * use.arrivals_per_s)


def test_requests_of_no_tenant_are_strangers(sharing: TrafficStore) -> None:
    record(sharing, "a")
    record(sharing, "a", port="8081")
    found = uses(sharing)
    assert found.strangers_per_s == pytest.approx(found.by_tenant[8080, "a"].arrivals_per_s)
    assert found.proxies == 1


def test_proxy_that_does_not_see_the_pool_counts_no_refusal(sharing: TrafficStore) -> None:
    record(sharing, "a", may_see=False, **above_share())
    assert sharing.tenants.traffic(NOW_S)[8080, "a"].over_share == 0
    assert not sharing.traffic(NOW_S + 1.0)


def test_tenants_without_shares_are_in_no_pool(counting: TrafficStore) -> None:
    record(counting, "a")
    assert all(one.tenants is None for one in counting.traffic(NOW_S + 1.0).values())


def test_use_that_ended_is_forgotten(sharing: TrafficStore) -> None:
    record(sharing, "a", **above_share())
    assert sharing.traffic(NOW_S + 1.0)
    assert all(one.tenants is None for one in sharing.traffic(NOW_S + 4.5).values())


def test_calls_in_progress_count_as_those_that_found_no_room(sharing: TrafficStore) -> None:
    """A surge of a tenant is seen before its first call ends."""
    record(sharing, "a")
    pool = sharing.directory.pools["chat"]
    engine = next(iter(pool.zone_of))
    sharing.record_load("p1", pool, {engine: (0, 0)}, NOW_S - 1.0)
    sharing.record_load("p1", pool, {engine: (40, 40)}, NOW_S)
    alone = uses(sharing)
    assert alone.strangers_per_s > 15, "they will take room, whosever they are"
    record(sharing, "b", kind=REQUEST, code=503, attempt="0", flag="no_healthy_upstream", cluster="")
    found = uses(sharing)
    # All that found no room are of others; so are those in progress.
    assert found.by_tenant[8080, "others"].arrivals_per_s > 15
    assert found.by_tenant[8080, "a"] == alone.by_tenant[8080, "a"]
