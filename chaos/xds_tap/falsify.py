"""Corrupt configuration so that Envoy refuses it, and falsify telemetry. Pure.

Bytes in, bytes out; other fields stay unchanged.
"""

from typing import Any, Final

from xds_server.telemetry.access_log_service import AccessLogs
from xds_server.telemetry.load_report_service import LoadReport
from xds_server.wire.decode import DeltaDiscoveryResponse, DiscoveryResponse
from xds_server.wire.responses import sotw_chunk

GARBAGE: Final = b"\x0a\xff"
"""A truncated field with a length of 255: not a valid message of any type."""


def corrupted_delta(response: bytes) -> bytes:
    """The delta response with unreadable resources; a pure removal is duplicated, which is refused too."""
    message = DeltaDiscoveryResponse.FromString(response)
    for one in message.resources:
        one.resource.value = GARBAGE
    message.removed_resources.extend(list(message.removed_resources))
    return message.SerializeToString()


def corrupted_sotw(response: bytes) -> bytes:
    """The response with unreadable resources, at least one."""
    message = DiscoveryResponse.FromString(response)
    if not message.resources:
        # Fields may be in any order, so appending one is valid.
        return response + sotw_chunk(message.type_url, GARBAGE)
    for one in message.resources:
        one.value = GARBAGE
    return message.SerializeToString()


def falsified_logs(message: bytes, *, good: bool) -> bytes:
    """The access log batch with each call to an engine either successful or reset before headers."""
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
    """The load report with the same outcome for all finished calls."""
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
