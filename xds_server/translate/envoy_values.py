"""Building blocks shared by several kinds of Envoy resources."""

from datetime import timedelta
from typing import Final

import betterproto2
from envoy_data_plane.envoy.config.core.v3 import AggregatedConfigSource, ApiVersion, ConfigSource
from envoy_data_plane.google.protobuf import Any

EDS_FETCH_TIMEOUT_S: Final = 1.0
"""Wait of a changed cluster for its endpoints. Envoy's default of 15 s delayed changes of all clusters
(measured).
"""


def seconds(value_s: float) -> timedelta:
    """A duration in Envoy's form."""
    return timedelta(seconds=value_s)


def ads_config_source(fetch_timeout_s: float | None = None) -> ConfigSource:
    """Subscribe on the stream that delivered this configuration."""
    return ConfigSource(
        ads=AggregatedConfigSource(),
        resource_api_version=ApiVersion.V3,
        initial_fetch_timeout=None if fetch_timeout_s is None else seconds(fetch_timeout_s),
    )


def pack_any(message: betterproto2.Message) -> Any:
    """The message inside an ``Any``."""
    return Any.pack(message)
