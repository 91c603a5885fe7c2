"""What earlier versions left: one folder a version, named for the commit that wrote it."""

from pathlib import Path

import pytest

RECORDED = Path(__file__).parents[1] / "data" / "recorded"
VERSIONS = ("be354ea", "0540822")
"""Oldest first; the last is the version before this one."""


@pytest.fixture(params=VERSIONS)
def then(request: pytest.FixtureRequest) -> Path:
    """The folder of each version in turn."""
    return RECORDED / str(request.param)


@pytest.fixture
def before() -> Path:
    """The folder of the version before this one."""
    return RECORDED / VERSIONS[-1]
