"""Quotas of a day and a month that are used up."""

from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from policies.load import load_contents
from policies.model import PolicySet
from policies.tenants import QuotaPeriod
from tests.policies.test_external_services import POOL, route
from xds_server.decide.admission.quota_periods import used_up_quotas
from xds_server.decide.decisions import UsedUpQuota
from xds_server.model.tenant_usage import NO_USAGE, TenantUsage, Used, period_end_unix_s

LIMITED = (
    "named: [{name: a, requests: 9, perDay: {requests: 100, tokens: 5000}, perMonth: {requests: 1000}}], "
    "others: {requests: 5, perMonth: {tokens: 70}}"
)
TODAY = date(2026, 12, 31)
MIDNIGHT = int(datetime(2027, 1, 1, tzinfo=UTC).timestamp())


def policies(fields: str) -> PolicySet:
    listener = f"tenants: {{header: x-tenant, trustHeader: true, {fields}}}"
    return load_contents({Path("p.yaml"): (POOL + route("r", listener)).encode()})


def usage(tenant: str, *, day: Used = Used(), month: Used = Used()) -> TenantUsage:  # noqa: B008 - frozen
    key = (8080, tenant)
    return TenantUsage(today=TODAY, used={QuotaPeriod.DAY: {key: day}, QuotaPeriod.MONTH: {key: month}})


@pytest.mark.parametrize(
    ("tenant", "day", "month", "limit"),
    [
        ("a", Used(requests=99, tokens=4999), Used(requests=999), None),
        ("a", Used(requests=100), Used(), 100),
        ("a", Used(tokens=5000), Used(), 5000),
        ("a", Used(requests=100), Used(requests=1000), 1000),
        ("a", Used(), Used(tokens=1e12), None),
        ("others", Used(requests=1e12), Used(tokens=69.9), None),
        ("others", Used(), Used(tokens=70), 70),
        ("gone", Used(requests=1e12), Used(requests=1e12), None),
    ],
)
def test_used_up_is_what_reached_a_limit(tenant: str, day: Used, month: Used, limit: int | None) -> None:
    found = used_up_quotas(policies(LIMITED), usage(tenant, day=day, month=month))
    if limit is None:
        assert found == {}
    else:
        period = QuotaPeriod.MONTH if month != Used() else QuotaPeriod.DAY
        assert found == {8080: {tenant: UsedUpQuota(period=period, limit=limit, until_unix_s=MIDNIGHT)}}


def test_nothing_is_used_up_before_anything_was_counted() -> None:
    assert used_up_quotas(policies(LIMITED), NO_USAGE) == {}


@pytest.mark.parametrize(
    ("today", "of_day", "of_month"),
    [
        (date(2026, 1, 31), date(2026, 2, 1), date(2026, 2, 1)),
        (date(2028, 2, 28), date(2028, 2, 29), date(2028, 3, 1)),
        (date(2026, 12, 1), date(2026, 12, 2), date(2027, 1, 1)),
    ],
)
def test_periods_end_at_midnight_utc(today: date, of_day: date, of_month: date) -> None:
    for period, end in ((QuotaPeriod.DAY, of_day), (QuotaPeriod.MONTH, of_month)):
        assert datetime.fromtimestamp(period_end_unix_s(today, period), UTC) == datetime(
            end.year, end.month, end.day, tzinfo=UTC
        )
