"""A real Envoy, as for the control plane's own configuration."""

from tests.with_envoy.conftest import start_envoy

__all__ = ["start_envoy"]
