"""Messages as they should not be: configuration that Envoy refuses, and telemetry that is not true. Pure.

Bytes in, bytes out; all that is not meant stays as it was.
"""

from typing import Any, Final

from xds_server.telemetry.access_log_service import AccessLogs
from xds_server.telemetry.load_report_service import LoadReport
from xds_server.wire.decode import DeltaDiscoveryResponse, DiscoveryResponse
from xds_server.wire.responses import sotw_chunk

GARBAGE: Final = b"\x0a\xff"
"""A field that promises 255 bytes and ends: no message of any type."""


def corrupted_delta(response: bytes) -> bytes:
    """The incremental response with resources that no Envoy can read; where it only removes, it does so twice,
    which is refused as well.
    """
    message = DeltaDiscoveryResponse.FromString(response)
    for one in message.resources:
        one.resource.value = GARBAGE
    message.removed_resources.extend(list(message.removed_resources))
    return message.SerializeToString()


def corrupted_sotw(response: bytes) -> bytes:
    """The response with resources that no Envoy can read, one at least."""
    message = DiscoveryResponse.FromString(response)
    if not message.resources:
        # Fields may stand in any order, so more of them may be appended.
        return response + sotw_chunk(message.type_url, GARBAGE)
    for one in message.resources:
        one.value = GARBAGE
    return message.SerializeToString()


def falsified_logs(message: bytes, *, good: bool) -> bytes:
    """The batch of access logs; each call that reached an engine ended well in it, or was reset before headers."""
    batch = AccessLogs.FromString(message)
    for entry in batch.http_logs.log_entry:
        common, response = entry.common_properties, entry.response
        if not common.HasField("upstream_remote_address"):
            continue
        common.ClearField("response_flags")
        if good:
            response.response_code.value = 200
            response.response_code_details = "via_upstream"
            if not common.HasField("time_to_last_upstream_rx_byte"):
                common.time_to_last_upstream_rx_byte.CopyFrom(common.duration)
        else:
            response.ClearField("response_code")
            response.response_code_details = "upstream_reset_before_response_started{remote_reset}"
            common.response_flags.upstream_remote_reset = True
            common.ClearField("time_to_first_upstream_rx_byte")
            common.ClearField("time_to_last_upstream_rx_byte")
    told: bytes = batch.SerializeToString()
    return told


def falsified_load(message: bytes, *, good: bool) -> bytes:
    """The load report in which all calls that ended, ended so."""
    report = LoadReport.FromString(message)
    for cluster in report.cluster_stats:
        for locality in cluster.upstream_locality_stats:
            _tell(locality, good=good)
            for endpoint in locality.upstream_endpoint_stats:
                _tell(endpoint, good=good)
    told: bytes = report.SerializeToString()
    return told


def _tell(stats: Any, *, good: bool) -> None:
    ended = stats.total_successful_requests + stats.total_error_requests
    stats.total_successful_requests, stats.total_error_requests = (ended, 0) if good else (0, ended)
