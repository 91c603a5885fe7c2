"""Readings from a DCGM exporter's page, over real HTTP."""

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from engine.gpu.dcgm import DcgmError, DcgmSource, dcgm_gpus, dcgm_vitals, dcgm_wear
from engine.gpu.gpu_judgement import judge_gpu
from engine.gpu.gpu_policy import GpuAction, GpuPolicy
from engine.gpu.gpu_readings import GpuReadings, NvmlState

LABELS = 'gpu="{at}",UUID="GPU-{at}",pci_bus_id="00000000:0{at}:00.0",device="nvidia{at}",modelName="Board 9"'


def page(**fields: tuple[float, ...]) -> str:
    """An exporter's page: one value for each GPU of each field."""
    lines = []
    for name, values in fields.items():
        lines += [f"# HELP DCGM_FI_DEV_{name} text", f"# TYPE DCGM_FI_DEV_{name} gauge"]
        for at, value in enumerate(values):
            lines.append(f"DCGM_FI_DEV_{name}{{{LABELS.format(at=at)}}} {value}")
    return "\n".join(lines) + "\n"


def test_a_page_becomes_gpus_and_a_blank_becomes_unknown() -> None:
    text = page(GPU_TEMP=(61, 62), MEMORY_TEMP=(9223372036854775794, 70), FB_USED=(1024, 2048))
    first, second = dcgm_gpus(text)
    assert (first.index, first.uuid, first.pci_bus_id) == ("0", "GPU-0", "00000000:00:00.0")
    assert dcgm_vitals(first.fields).memory_temperature_c is None
    assert dcgm_vitals(second.fields).memory_temperature_c == 70
    assert dcgm_vitals(first.fields).memory_used_bytes == 2**30
    assert dcgm_vitals(first.fields).nvlink_errors is None


def test_counters_are_found_under_either_spelling_and_slices_are_left_out() -> None:
    text = (
        "# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER counter\n"
        'DCGM_FI_DEV_PCIE_REPLAY_COUNTER{gpu="0",UUID="GPU-0"} 7\n'
        "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",GPU_I_ID="3",GPU_I_PROFILE="1g.10gb"} 50\n'
    )
    (gpu,) = dcgm_gpus(text)
    assert dcgm_vitals(gpu.fields).pcie_replays == 7


def test_row_remaps_are_read() -> None:
    (gpu,) = dcgm_gpus(page(ROW_REMAP_FAILURE=(1,), UNCORRECTABLE_REMAPPED_ROWS=(8,)))
    remaps = dcgm_wear(gpu.fields).row_remaps
    assert remaps is not None
    assert (remaps.uncorrectable, remaps.failed) == (8, True)


def test_malformed_page_is_refused() -> None:
    with pytest.raises(DcgmError):
        dcgm_gpus('DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0"} warm\n')


class Exporter:
    """A web server with configurable answers."""

    def __init__(self) -> None:
        self.text, self.status = "", 200
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exporter.text.encode()
                self.send_response(exporter.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
                """Say nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def end(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter()
    yield exporter
    exporter.end()


def until(source: DcgmSource, holds: Callable[[GpuReadings], bool]) -> GpuReadings:
    limit_s = time.monotonic() + 60
    while not holds(source.read()):
        assert time.monotonic() < limit_s, source.read().statement
        time.sleep(0.01)
    return source.read()


def test_an_xid_is_seen_when_the_last_one_changes(exporter: Exporter) -> None:
    heard: list[int] = []
    exporter.text = page(XID_ERRORS=(43, 0), GPU_TEMP=(50, 50))
    with DcgmSource(exporter.url, interval_s=0.02, on_xid=lambda event: heard.append(event.code)) as source:
        until(source, lambda readings: len(readings.gpus) == 2)
        assert source.xids() == (), "what was there at first may be of last week"
        exporter.text = page(XID_ERRORS=(43, 79), GPU_TEMP=(50, 51))
        readings = until(source, lambda _: bool(heard))
        judgement = judge_gpu(readings, source.xids(), GpuPolicy(), time.monotonic())
        assert (judgement.action, judgement.worst_rank) == (GpuAction.EJECT, 1)
        assert heard == [79]
    assert source.close()


def test_an_exporter_that_goes_leaves_unknown_behind(exporter: Exporter) -> None:
    exporter.text = page(GPU_TEMP=(50,))
    with DcgmSource(exporter.url, interval_s=0.02, devices=["GPU-0", "GPU-9"]) as source:
        readings = until(source, lambda readings: readings.state is NvmlState.PRESENT)
        assert [device.name for device in readings.missing] == ["GPU-9"]
        exporter.status = 503
        readings = until(source, lambda readings: readings.state is NvmlState.ABSENT)
    assert "status 503" in readings.statement
    assert judge_gpu(readings, (), GpuPolicy(), time.monotonic()).action is GpuAction.NONE


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="not an http"):
        DcgmSource("localhost:9400")
