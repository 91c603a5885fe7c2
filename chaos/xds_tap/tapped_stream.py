"""What a wiretap does with the messages of one stream, one after the other; nothing waits here."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError

from chaos.xds_tap.falsify import corrupted_delta, corrupted_sotw, falsified_load, falsified_logs
from chaos.xds_tap.tap_rules import StreamTreatment
from xds_server.model.type_urls import SHORT_NAMES
from xds_server.telemetry import access_log_service, load_report_service
from xds_server.wire.decode import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)

_ADS: Final = "/envoy.service.discovery.v3.AggregatedDiscoveryService/"
DELTA: Final = f"{_ADS}DeltaAggregatedResources"
SOTW: Final = f"{_ADS}StreamAggregatedResources"

_TOLD_CHARACTERS: Final = 500
_HALF: Final = _TOLD_CHARACTERS // 2 - 2

Note = Callable[[dict[str, str]], None]
TreatmentLookup = Callable[[], StreamTreatment]

_TOLD: Final[dict[str, Callable[..., bytes]]] = {
    access_log_service.METHOD: falsified_logs,
    load_report_service.METHOD: falsified_load,
}


class TappedStream(Protocol):
    """What is made of each message before it goes on. ``telemetry``: it is one of those that can be lost."""

    telemetry: bool

    def on_request(self, request: bytes) -> bytes:
        """What goes on of what the proxy sent."""

    def on_response(self, response: bytes) -> bytes:
        """What goes on of what the control plane sent."""


def tapped_stream(method: str, treatment: TreatmentLookup, note: Note) -> TappedStream:
    """What to do with a stream of this gRPC method; ``note`` is told of pushes and answers."""
    if method in (DELTA, SOTW):
        return _Discovery(method == DELTA, treatment, note)
    return _Other(_TOLD.get(method), treatment)


class _Discovery:
    """Notes each response, and the first request that answers it."""

    telemetry = False

    def __init__(self, delta: bool, treatment: TreatmentLookup, note: Note) -> None:
        self._request: Any = DeltaDiscoveryRequest if delta else DiscoveryRequest
        self._response: Any = DeltaDiscoveryResponse if delta else DiscoveryResponse
        self._refused = corrupted_delta if delta else corrupted_sotw
        self._treatment = treatment
        self._note = note
        self._unanswered: set[str] = set()

    def on_request(self, request: bytes) -> bytes:
        try:
            message = self._request.FromString(request)
        except DecodeError:
            return request  # the control plane's to refuse
        # Requests for other resources may repeat the nonce of what was answered before.
        if message.response_nonce in self._unanswered:
            self._unanswered.discard(message.response_nonce)
            told = {"type": short_type(message.type_url), "nonce": message.response_nonce}
            if message.HasField("error_detail"):
                # Envoy quotes what it refuses, thousands of characters of it, before or behind the reason.
                said = message.error_detail.message.strip() or f"code {message.error_detail.code}"
                told["error"] = said if len(said) <= _TOLD_CHARACTERS else f"{said[:_HALF]} … {said[-_HALF:]}"
            self._note({"event": "answered", **told})
        return request

    def on_response(self, response: bytes) -> bytes:
        try:
            message = self._response.FromString(response)
        except DecodeError:
            return response
        kind = short_type(message.type_url)
        self._unanswered.add(message.nonce)
        self._note({"event": "pushed", "type": kind, "nonce": message.nonce})
        return self._refused(response) if kind in self._treatment().corrupt else response


class _Other:
    """Passes everything on; what proxies tell may be made untrue, ``told`` as it is ordered."""

    def __init__(self, told: Callable[..., bytes] | None, treatment: TreatmentLookup) -> None:
        self.telemetry = told is not None
        self._told = told
        self._treatment = treatment

    def on_request(self, request: bytes) -> bytes:
        says = self._treatment().says
        if self._told is None or not says:
            return request
        try:
            return self._told(request, good=says == "all-good")
        except DecodeError:
            return request

    def on_response(self, response: bytes) -> bytes:
        return response


def short_type(type_url: str) -> str:
    """``cds``, ``eds``, ... of a type URL; the message's name where it is none of those we serve."""
    name = SHORT_NAMES.get(type_url)
    return type_url.rpartition(".")[2] if name is None else name.lower()
