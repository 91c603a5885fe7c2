"""Conditions on deadlines: which values count, and which are below a time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.deadline import Deadline, DeadlineForm, parse_deadline_header
from xds_server.translate.deadlines import deadline_below, deadline_mutations, states_deadline

UNITS_S = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "S": 1.0, "M": 60.0, "H": 3600.0}
GRPC = Deadline(header="grpc-timeout")


def regex(matcher: object) -> re.Pattern[str]:
    return re.compile(matcher.string_match.safe_regex.regex)


@given(
    number=st.integers(0, 99_999_999),
    unit=st.sampled_from(sorted(UNITS_S)),
    limit_ms=st.integers(1, 200_000_000),
)
def test_grpc_value_is_below_a_limit_as_numbers_are(number: int, unit: str, limit_ms: int) -> None:
    below = regex(deadline_below(GRPC, limit_ms / 1000)).fullmatch(f"{number}{unit}")
    # In whole nanoseconds: 1e9 ns are a second.
    in_ns = number * round(UNITS_S[unit] * 1e9)
    assert (below is not None) is (in_ns < limit_ms * 1_000_000)


@given(value=st.text("0123456789.-+mSHx ", max_size=11))
def test_only_grpc_forms_state_a_deadline(value: str) -> None:
    stated = regex(states_deadline(GRPC)).fullmatch(value)
    assert (stated is not None) is (re.fullmatch(r"[0-9]{1,8}[HMSmun]", value) is not None)


@pytest.mark.parametrize(
    ("form", "limit_s", "end"),
    [
        (DeadlineForm.MILLISECONDS, 0.25, 250),
        (DeadlineForm.MILLISECONDS, 0.00001, 1),
        (DeadlineForm.MILLISECONDS, 1e9, 100_000_000),
        # 2 s are below 2.5 s, 3 s are not.
        (DeadlineForm.SECONDS, 2.5, 3),
        (DeadlineForm.SECONDS, 2.0, 2),
    ],
)
def test_whole_number_is_below_a_limit(form: DeadlineForm, limit_s: float, end: int) -> None:
    matcher = deadline_below(Deadline(header="x-t", form=form), limit_s)
    assert matcher.name == "x-t"
    assert (matcher.range_match.start, matcher.range_match.end) == (0, end)


def test_header_of_grpc_is_read_as_it_is_and_a_callers_own_is_removed_otherwise() -> None:
    assert [one.append.header.value for one in deadline_mutations(GRPC)] == ["%REQ(grpc-timeout)%"]
    others = list(deadline_mutations(Deadline(header="x-t", form=DeadlineForm.SECONDS)))
    assert [one.remove for one in others if one.remove] == ["grpc-timeout"]
    assert others[-1].append.header.value == "%REQ(x-t)%S"
    assert list(deadline_mutations(None)) == []


@pytest.mark.parametrize(
    ("total_s", "most_s", "limit_s"), [(20, 60, 20), (20, 5, 5), (0, 5, 5), (20, 0, 20), (0, 0, 0)]
)
def test_longest_deadline_is_the_shorter_of_maximum_and_total(
    total_s: float, most_s: float, limit_s: float
) -> None:
    assert Deadline.model_validate({"header": "x-t", "max": f"{most_s}s"}).limit_s(total_s) == limit_s


@pytest.mark.parametrize("name", ["x-envoy-timeout", "x-switchgear-model", "host", "X-Timeout", "x_timeout", "x-"])
def test_header_of_others_cannot_state_a_deadline(name: str) -> None:
    with pytest.raises(ValueError, match="cannot state a deadline"):
        parse_deadline_header(name)
