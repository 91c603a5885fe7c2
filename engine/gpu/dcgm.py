"""GPU readings from a DCGM exporter, for agents without access to the GPUs.

Less complete and slower than NVML: the exporter samples every 30 s by default, exposes only configured fields, and
only the number of the last XID. So repeats of one XID and the order of several are lost. MIG slices are ignored.

Field names and labels: https://github.com/NVIDIA/dcgm-exporter, ``etc/default-counters.csv`` and README.
"""

import http.client
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import structlog
from prometheus_client.parser import text_string_to_metric_families

from engine.gpu.gpu_reading_history import GpuReadingHistory
from engine.gpu.gpu_readings import (
    GpuIdentity,
    GpuReadGaps,
    GpuReadings,
    MissingDevice,
    NvLinkErrors,
    NvmlState,
    RowRemaps,
    Vitals,
    Wear,
)
from engine.gpu.xid import xid_rule
from engine.gpu.xid_events import XidEvent, XidLatch, XidRecord

log = structlog.get_logger()

_MAX_BYTES: Final = 8 * 2**20
_MIB: Final = 2**20
# DCGM encodes "no value" as numbers from here up (DCGM_INT32_BLANK); real values stay far below.
_BLANK: Final = 0x7FFFFFF0
_PREFIX: Final = "DCGM_FI_DEV_"
_NOTHING_TO_ADD: Final = GpuReadGaps(fault=None, unknown=())


class DcgmError(Exception):
    """The exporter cannot be read; the message is for users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmGpu:
    """Labels and fields (without prefix) of one GPU."""

    index: str
    uuid: str
    name: str
    pci_bus_id: str
    fields: Mapping[str, float]


def dcgm_gpus(text: str) -> tuple[DcgmGpu, ...]:
    """GPUs of an exporter page by index, without MIG slices; DcgmError if it is not one."""
    labels: dict[str, Mapping[str, str]] = {}
    fields: dict[str, dict[str, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                uuid = sample.labels.get("UUID")
                if uuid is None or not sample.name.startswith(_PREFIX) or sample.labels.get("GPU_I_ID"):
                    continue
                labels[uuid] = sample.labels
                if 0 <= sample.value < _BLANK:
                    name = sample.name.removeprefix(_PREFIX).removesuffix("_total")
                    fields.setdefault(uuid, {})[name] = float(sample.value)
    except ValueError as error:
        raise DcgmError("not a Prometheus text page") from error
    gpus = (
        DcgmGpu(
            index=found.get("gpu", ""),
            uuid=uuid,
            name=found.get("modelName", ""),
            pci_bus_id=found.get("pci_bus_id", ""),
            fields=fields.get(uuid, {}),
        )
        for uuid, found in labels.items()
    )
    return tuple(sorted(gpus, key=lambda gpu: (len(gpu.index), gpu.index)))


def dcgm_vitals(fields: Mapping[str, float]) -> Vitals:
    """``Vitals`` from an exporter, which has memory in MiB."""
    used, free = fields.get("FB_USED"), fields.get("FB_FREE")
    flit, data = fields.get("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"), fields.get("NVLINK_CRC_DATA_ERROR_COUNT_TOTAL")
    links = NvLinkErrors(
        crc=None if flit is None and data is None else int((flit or 0) + (data or 0)),
        replay=_whole(fields, "NVLINK_REPLAY_ERROR_COUNT_TOTAL"),
        recovery=_whole(fields, "NVLINK_RECOVERY_ERROR_COUNT_TOTAL"),
    )
    return Vitals(
        temperature_c=_whole(fields, "GPU_TEMP"),
        memory_temperature_c=_whole(fields, "MEMORY_TEMP"),
        power_w=fields.get("POWER_USAGE"),
        sm_clock_mhz=_whole(fields, "SM_CLOCK"),
        memory_clock_mhz=_whole(fields, "MEM_CLOCK"),
        utilisation_percent=_whole(fields, "GPU_UTIL"),
        memory_utilisation_percent=_whole(fields, "MEM_COPY_UTIL"),
        memory_used_bytes=None if used is None else int(used * _MIB),
        memory_free_bytes=None if free is None else int(free * _MIB),
        ecc_corrected=_whole(fields, "ECC_SBE_VOL_TOTAL"),
        ecc_uncorrected=_whole(fields, "ECC_DBE_VOL_TOTAL"),
        pcie_replays=_whole(fields, "PCIE_REPLAY_COUNTER"),
        nvlink_errors=None if links.total is None else links,
    )


def dcgm_wear(fields: Mapping[str, float]) -> Wear:
    """``Wear`` from an exporter; pending remaps are not among its default fields."""
    failed = fields.get("ROW_REMAP_FAILURE")
    pending = fields.get("RETIRED_PENDING")
    return Wear(
        ecc_corrected_total=_whole(fields, "ECC_SBE_AGG_TOTAL"),
        ecc_uncorrected_total=_whole(fields, "ECC_DBE_AGG_TOTAL"),
        row_remaps=None
        if failed is None
        else RowRemaps(
            correctable=_whole(fields, "CORRECTABLE_REMAPPED_ROWS") or 0,
            uncorrectable=_whole(fields, "UNCORRECTABLE_REMAPPED_ROWS") or 0,
            pending=None,
            failed=bool(failed),
        ),
        retired_pages_single_bit=_whole(fields, "RETIRED_SBE"),
        retired_pages_double_bit=_whole(fields, "RETIRED_DBE"),
        retirement_pending=None if pending is None else bool(pending),
    )


def _whole(fields: Mapping[str, float], name: str) -> int | None:
    value = fields.get(name)
    return None if value is None else int(value)


class DcgmSource:
    """A ``GpuSource`` fed by the exporter page at ``url``."""

    def __init__(
        self,
        url: str,
        *,
        devices: Sequence[str] = (),
        interval_s: float = 5.0,
        timeout_s: float = 2.0,
        growth_window_s: float = 300.0,
        on_xid: Callable[[XidEvent], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = urlsplit(url)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise ValueError(f"{url!r} is not an http:// or https:// address")
        self._wanted = tuple(devices)
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._growth_window_s = growth_window_s
        self._on_xid = on_xid
        self._clock = clock
        self._latch = XidLatch()
        self._memory: dict[int, GpuReadingHistory] = {}
        self._last_xid: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dcgm-reader", daemon=True)
        self._now = GpuReadings(state=NvmlState.OPENING, statement="no answer from the DCGM exporter yet")

    def open(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def close(self, *, timeout_s: float = 2.0) -> bool:
        """True if the thread ended in time, within the time limit of the exporter."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self) -> GpuReadings:
        """Current readings; never blocks or raises."""
        return self._now

    def xids(self) -> tuple[XidRecord, ...]:
        """All remembered XIDs."""
        return self._latch.records()

    def engine_restarted(self) -> int:
        """Forget XIDs that a restart fixes; return their number."""
        return self._latch.forget(lambda record: xid_rule(record.code, {}).fixed_by_restart)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._take(dcgm_gpus(self._page()))
            except DcgmError as error:
                statement = f"no DCGM exporter at {self._url.netloc}: {error}; GPU health unknown"
                if self._now.statement != statement:
                    log.warning("gpu.absent", reason=statement)
                self._now = GpuReadings(state=NvmlState.ABSENT, statement=statement)
            self._stop.wait(self._interval_s)

    def _page(self) -> str:
        host, port = self._url.hostname or "", self._url.port or 9400
        connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        try:
            if self._url.scheme == "https":
                # Verified by the system CA bundle (override: SSL_CERT_FILE).
                context = ssl.create_default_context()
                connection = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
            connection.request("GET", self._url.path or "/metrics")
            answer = connection.getresponse()
            body = answer.read(_MAX_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise DcgmError(str(error) or type(error).__name__) from error
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise DcgmError(f"status {answer.status}")
        return body.decode("utf-8", "replace")

    def _take(self, gpus: tuple[DcgmGpu, ...]) -> None:
        now_s = self._clock()
        by_name = {name: gpu for gpu in gpus for name in (gpu.index, gpu.uuid)}
        wanted = self._wanted or tuple(gpu.uuid for gpu in gpus)
        missing = tuple(
            MissingDevice(name=name, why="not exposed by the exporter") for name in wanted if name not in by_name
        )
        ranks = [(rank, by_name[name]) for rank, name in enumerate(wanted) if name in by_name]
        readings = []
        for rank, gpu in ranks:
            memory = self._memory.setdefault(rank, GpuReadingHistory(self._growth_window_s))
            memory.keep(dcgm_wear(gpu.fields), _NOTHING_TO_ADD, now_s)
            identity = GpuIdentity(rank=rank, uuid=gpu.uuid, name=gpu.name, pci_bus_id=gpu.pci_bus_id)
            readings.append(memory.reading(identity, dcgm_vitals(gpu.fields), _NOTHING_TO_ADD, now_s))
        for event in self._edges(ranks, now_s):
            self._latch.record(event)
            log.warning("gpu.xid", code=event.code, rank=event.rank, meaning=xid_rule(event.code, {}).meaning)
            if self._on_xid is not None:
                self._on_xid(event)
        self._now = GpuReadings(
            state=NvmlState.PRESENT,
            statement=f"the DCGM exporter at {self._url.netloc} available, {len(readings)} GPU(s)",
            ranks=len(readings),
            gpus=tuple(readings),
            missing=missing,
        )

    def _edges(self, ranks: Sequence[tuple[int, DcgmGpu]], now_s: float) -> Iterator[XidEvent]:
        """XIDs new since the last page; those of the first page may be old."""
        for rank, gpu in ranks:
            code = _whole(gpu.fields, "XID_ERRORS")
            if code is None:
                continue
            before = self._last_xid.setdefault(gpu.uuid, code)
            self._last_xid[gpu.uuid] = code
            if code not in (before, 0):
                yield XidEvent(rank=rank, code=code, at_s=now_s)
