"""Treatment of the messages of one stream, one by one; never blocks."""

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
    """Treatment of each message before it is relayed. ``telemetry``: the stream can be dropped."""

    telemetry: bool

    def on_request(self, request: bytes) -> bytes:
        """The message to relay for one from the proxy."""

    def on_response(self, response: bytes) -> bytes:
        """The message to relay for one from the control plane."""


def tapped_stream(method: str, treatment: TreatmentLookup, note: Note) -> TappedStream:
    """Treatment of a stream of this gRPC method; ``note`` records pushes and replies."""
    if method in (DELTA, SOTW):
        return _Discovery(method == DELTA, treatment, note)
    return _Other(_TOLD.get(method), treatment)


class _Discovery:
    """Records each response, and the first request that answers it."""

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
            return request  # let the control plane refuse it
        # Requests for other resources may repeat an earlier nonce.
        if message.response_nonce in self._unanswered:
            self._unanswered.discard(message.response_nonce)
            told = {"type": short_type(message.type_url), "nonce": message.response_nonce}
            if message.HasField("error_detail"):
                # Envoy quotes the refused resource, thousands of characters, before or after the reason.
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
    """Relays everything; telemetry may be falsified with ``falsify``."""

    def __init__(self, falsify: Callable[..., bytes] | None, treatment: TreatmentLookup) -> None:
        self.telemetry = falsify is not None
        self._falsify = falsify
        self._treatment = treatment

    def on_request(self, request: bytes) -> bytes:
        says = self._treatment().says
        if self._falsify is None or not says:
            return request
        try:
            return self._falsify(request, good=says == "all-good")
        except DecodeError:
            return request

    def on_response(self, response: bytes) -> bytes:
        return response


def short_type(type_url: str) -> str:
    """``cds``, ``eds``, ... of a type URL; the message's name for other types."""
    name = SHORT_NAMES.get(type_url)
    return type_url.rpartition(".")[2] if name is None else name.lower()
