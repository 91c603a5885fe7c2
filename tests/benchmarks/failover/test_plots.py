"""Charts of the failover page."""

from benchmarks.failover.contestants import CONTESTANTS
from benchmarks.failover.plots import _COLOURS


def test_each_contestant_has_a_colour_of_its_own() -> None:
    assert set(CONTESTANTS) <= set(_COLOURS)
    assert len(set(_COLOURS.values())) == len(_COLOURS)
