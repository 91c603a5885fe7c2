"""Usage of tenants by calendar day: what counts, when a period begins again, and what a clock may do."""

from datetime import UTC, date, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from policies.model import PolicySet
from policies.tenants import OTHERS, QuotaPeriod
from tests.xds_server.decide.admission.test_quota_periods import LIMITED, policies
from xds_server.model.tenant_usage import NO_USAGE, Used
from xds_server.telemetry.usage_by_day import KEPT_DAYS, MOST_ROWS, UsageByDay

KEY = (8080, "a")
BEGUN = datetime(2026, 2, 27, 12, tzinfo=UTC)
COUNTED: PolicySet = policies(LIMITED)


class Clock:
    def __init__(self, now: datetime = BEGUN) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now.timestamp()


def used(book: UsageByDay, period: QuotaPeriod) -> Used:
    return book.current(COUNTED).of(KEY, period)


def add(book: UsageByDay, requests: float = 1.0) -> None:
    book.add(KEY, "m", requests=requests, tokens=10 * requests, corrected=4 * requests)


def test_day_and_month_begin_again_at_midnight_utc() -> None:
    clock = Clock()
    book = UsageByDay(clock)
    for _ in range(4):
        add(book)
        clock.now += timedelta(days=1)
    assert used(book, QuotaPeriod.DAY) == Used()
    assert clock.now.date() == date(2026, 3, 3)
    assert used(book, QuotaPeriod.MONTH) == Used(requests=2, tokens=20, corrected=8)
    clock.now = datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC)
    assert used(book, QuotaPeriod.DAY).requests == 1
    assert used(book, QuotaPeriod.MONTH).requests == 2


def test_clock_that_was_set_forward_and_back_costs_no_usage() -> None:
    clock = Clock()
    book = UsageByDay(clock)
    add(book, 5)
    clock.now = datetime(2036, 1, 1, tzinfo=UTC)
    add(book)
    assert used(book, QuotaPeriod.DAY).requests == 1
    clock.now = BEGUN
    assert used(book, QuotaPeriod.DAY).requests == 5
    assert used(book, QuotaPeriod.MONTH).requests == 5


def test_days_are_bounded_and_the_oldest_goes() -> None:
    clock = Clock()
    book = UsageByDay(clock)
    for _ in range(KEPT_DAYS + 5):
        add(book)
        clock.now += timedelta(days=1)
    assert len(book.days) == KEPT_DAYS
    assert book.days[0] == BEGUN.date() + timedelta(days=5)
    assert book.changed == set(book.days)


def test_rows_of_a_day_are_bounded() -> None:
    book = UsageByDay(Clock())
    for number in range(MOST_ROWS + 3):
        book.add((8080, f"t{number}"), "m", requests=1, tokens=0, corrected=0)
    rows = book.rows(BEGUN.date())
    assert len(rows) == MOST_ROWS + 1
    assert [row.requests for row in rows if (row.tenant, row.model) == (OTHERS, "")] == [3]


def test_without_quotas_of_periods_nothing_is_decided_by_usage() -> None:
    book = UsageByDay(Clock())
    add(book)
    assert book.current(policies("others: {requests: 5}")) is NO_USAGE


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(1, 5))))
def test_month_is_the_sum_of_its_days_whatever_the_clock_does(steps: list[tuple[int, int]]) -> None:
    clock = Clock()
    book, expected = UsageByDay(clock), dict[date, int]()
    for days, requests in steps:
        clock.now = BEGUN + timedelta(days=days % 50)
        add(book, requests)
        expected[clock.now.date()] = expected.get(clock.now.date(), 0) + requests
    today = clock.now.date()
    assert used(book, QuotaPeriod.DAY).requests == expected.get(today, 0)
    month = sum(count for day, count in expected.items() if day.month == today.month)
    assert used(book, QuotaPeriod.MONTH).requests == month
    restored = UsageByDay(clock)
    for day in book.days:
        restored.restore(day, book.rows(day))
    assert restored.current(COUNTED) == book.current(COUNTED)
