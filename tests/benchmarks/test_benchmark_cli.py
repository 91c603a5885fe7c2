"""``python -m benchmarks`` knows its benchmarks by name."""

import importlib

import pytest

from benchmarks.__main__ import NAMES, main


def test_every_name_is_a_benchmark() -> None:
    for name in NAMES:
        assert callable(importlib.import_module(f"benchmarks.{name}").main)


def test_unknown_benchmark_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed"]) == 2
    assert "eds_encode" in capsys.readouterr().out
