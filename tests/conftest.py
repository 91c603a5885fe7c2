"""What every test may use."""

import hypothesis
import pytest

# A machine with more to do than it has cores is no reason to fail: how fast things are is for the benchmarks.
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what golden cases compile to now, and delete what they no longer do; the diff is the review",
    )
