"""The fake driver compared with a reading of a real one: the same values, in the same types.

The reading is in ``benchmarks/results/gpu_calls.json``, written by ``make bench ARGS=gpu_calls`` on a machine
with a GPU.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engine.gpu.conftest import Watched

RECORDED: Mapping[str, Any] = json.loads(
    (Path(__file__).parents[3] / "benchmarks/results/gpu_calls.json").read_text()
)["reading"]
MORE_IN_THE_FAKE = {
    "nvlink_errors": "the recorded machine has one GPU of its board, without links",
    "retired_pages_single_bit": "boards before Ampere",
    "retired_pages_double_bit": "boards before Ampere",
    "retirement_pending": "boards before Ampere",
}
"""What the fake has and the recorded GPU has not, so that tests can use it."""
pytestmark = pytest.mark.slow


def shape(value: object) -> object:
    """Names and types, without values."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return "list"
    return type(value).__name__


@pytest.mark.parametrize("part", ["vitals", "wear"])
def test_healthy_fake_has_the_values_of_a_real_gpu(watch: Callable[..., Watched], part: str) -> None:
    state = watch().until(lambda one: bool(one["readings"]["gpus"]))
    fake = state["readings"]["gpus"][0][part]
    real = dict(RECORDED[part])
    absent = {name for name in fake if real[name] is None and fake[name] is not None}
    assert absent == set(MORE_IN_THE_FAKE) & set(real)
    assert shape({name: fake[name] for name in fake if name not in absent}) == shape(
        {name: real[name] for name in real if name not in absent}
    )
