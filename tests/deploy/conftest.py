"""What tests of the scripts share with those of the proxy."""

from tests.with_envoy.conftest import start_envoy

__all__ = ["start_envoy"]
