"""Fixtures shared with the Envoy tests."""

from tests.with_envoy.conftest import start_envoy

__all__ = ["start_envoy"]
