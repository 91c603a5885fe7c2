"""The real pynvml against a fake libnvidia-ml.so.1: every signal, and every way in which NVML lets one down."""

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.gpu.gpu_readings import EVENTS_NOT_YET
from engine.gpu.xid import XIDS

State = dict[str, Any]


def whole(state: State) -> bool:
    readings = state["readings"]
    listening = readings["events"] != EVENTS_NOT_YET
    return listening and bool(readings["ranks"]) and len(readings["gpus"]) == readings["ranks"]


def action(wanted: str) -> Callable[[State], bool]:
    return lambda state: state["judgement"]["action"] == wanted


def says(words: str) -> Callable[[State], bool]:
    return lambda state: any(words in each["sentence"] for each in state["judgement"]["evidence"])


def test_every_signal_of_a_healthy_pair_is_read(watch) -> None:
    state = watch().until(whole)
    first, second = state["readings"]["gpus"]
    assert first["identity"] == {
        "rank": 0,
        "uuid": "GPU-double-0",
        "name": "Double 9000",
        "pci_bus_id": "00000000:01:00.0",
        "gpu_instance_id": None,
        "slowdown_temperature_c": 90,
        "power_limit_w": 700.0,
        "max_sm_clock_mhz": 1980,
    }
    assert second["identity"]["uuid"] == "GPU-double-1"
    assert first["vitals"] == {
        "temperature_c": 55,
        "memory_temperature_c": 61,
        "power_w": 412.5,
        "throttled": [],
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 2619,
        "utilisation_percent": 87,
        "memory_utilisation_percent": 41,
        "memory_total_bytes": 85_899_345_920,
        "memory_used_bytes": 77_309_411_328,
        "memory_free_bytes": 85_899_345_920 - 77_309_411_328 - 603_979_776,
        "memory_reserved_bytes": 603_979_776,
        "ecc_corrected": 4,
        "ecc_uncorrected": 0,
        "pcie_replays": 3,
        "nvlink_errors": {"crc": 3, "replay": 3, "recovery": 4},
        "recovery": "none",
    }
    assert first["wear"] == {
        "ecc_enabled": True,
        "ecc_corrected_total": 9,
        "ecc_uncorrected_total": 1,
        "row_remaps": {"correctable": 0, "uncorrectable": 1, "pending": False, "failed": False},
        "retired_pages_single_bit": 2,
        "retired_pages_double_bit": 0,
        "retirement_pending": False,
        "nvlinks_up": [True] * 18,
        "persistence": True,
        "mig_enabled": False,
        "processes": [{"pid": 4242, "memory_bytes": 77_000_000_000}],
    }
    assert first["unknown"] == []
    assert state["readings"]["events"] == ""
    assert state["judgement"]["action"] == "none"
    assert state["judgement"]["statement"] == "NVML available, driver 570.86.15, 2 GPU(s)"


def test_a_gpu_that_supports_nothing_is_unknown_and_not_bad(double, watch) -> None:
    double.clear()
    double.set({"gpus": 1})
    state = watch().until(whole)
    (gpu,) = state["readings"]["gpus"]
    assert {name for name, value in gpu["vitals"].items() if value is not None} == set()
    assert {name for name, value in gpu["wear"].items() if value is not None} == {"nvlinks_up", "processes"}
    assert {each["why"] for each in gpu["unknown"]} == {
        "not supported by this GPU",
        "missing from the installed driver",  # the newer call for the temperature, which the double never has
    }
    assert state["judgement"]["action"] == "none"
    assert "unknown: " in state["judgement"]["statement"]


def test_a_driver_without_the_newer_symbols_is_asked_in_the_older_way(double, watch) -> None:
    double.build(
        without=(
            "nvmlDeviceGetRemappedRows",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetFieldValues",
        )
    )
    double.set({"*.throttle": 0x4})
    state = watch().until(whole)
    gpu = state["readings"]["gpus"][0]
    assert gpu["vitals"]["throttled"] == ["software power cap"]
    assert gpu["vitals"]["memory_total_bytes"] == 85_899_345_920
    assert gpu["vitals"]["memory_reserved_bytes"] is None
    assert {(each["signal"], each["why"]) for each in gpu["unknown"]} == {
        ("nvmlDeviceGetRemappedRows", "missing from the installed driver"),
        ("nvmlDeviceGetFieldValues", "missing from the installed driver"),
    }
    assert state["judgement"]["action"] == "none"


def test_an_absent_library_is_a_clear_statement(double, watch, tmp_path: Path) -> None:
    environment = {**double.environment(), "LD_LIBRARY_PATH": str(tmp_path / "nowhere")}
    state = watch(environment).until(lambda state: state["readings"]["state"] != "opening")
    assert state["readings"]["state"] == "absent"
    assert state["judgement"]["action"] == "none"
    assert state["judgement"]["statement"] == (
        "NVML unavailable: libnvidia-ml.so.1 is not on this machine; GPU health unknown"
    )


def test_a_driver_that_is_loaded_late_is_found(double, watch) -> None:
    double.set({"return.nvmlInitWithFlags": 9})
    watched = watch()
    state = watched.until(lambda state: state["readings"]["state"] == "absent")
    assert "the NVIDIA driver is not loaded" in state["readings"]["statement"]
    double.set({"return.nvmlInitWithFlags": None})
    assert len(watched.until(whole)["readings"]["gpus"]) == 2


def test_hanging_driver_blocks_no_reader_and_is_evidence(double, watch) -> None:
    watched = watch(call_deadline_s=0.05, policy={"blocked_after_s": 0.3, "stale_after_s": 0.4})
    watched.until(whole)
    double.set({"block.nvmlDeviceGetPowerUsage": 1})
    state = watched.until(says("nvmlDeviceGetPowerUsage"))
    assert state["judgement"]["action"] == "degrade"
    assert state["judgement"]["evidence"][0]["signal"] == "blocked"
    assert state["readings"]["blocked"]["call"] == "nvmlDeviceGetPowerUsage"
    # The other thread still hears XIDs, and what was last read is no longer believed.
    double.xid(1, 119)
    state = watched.until(says("XID 119"))
    assert state["judgement"]["action"] == "drain"
    watched.until(lambda state: "last reading older than" in state["judgement"]["statement"])
    # A reader blocked by the driver would be late each time; one that is late once was starved of CPU.
    assert min(each["read_ms"] for each in watched.states(20)) < 100
    double.set({"block.nvmlDeviceGetPowerUsage": None})
    watched.until(lambda state: not says("nvmlDeviceGetPowerUsage")(state) and whole(state))


def test_a_hung_driver_does_not_keep_the_process(double, watch) -> None:
    double.set({"block.nvmlInitWithFlags": 1})
    watched = watch(call_deadline_s=0.05, policy={"blocked_after_s": 0.1})
    state = watched.until(says("nvmlInit"))
    assert state["readings"]["state"] == "opening"
    status, errors = watched.end()  # within a limit
    assert status == 0, errors


def test_one_lost_rank_decides_for_the_group(double, watch) -> None:
    watched = watch()
    watched.until(whole)
    # Every call about GPU 1 fails the way it does when a GPU has left the bus.
    double.set({"1.return.nvmlDeviceGetPowerUsage": 15, "1.return.nvmlDeviceGetTemperature": 15})
    state = watched.until(action("eject"))
    assert state["judgement"]["worst_rank"] == 1
    assert state["judgement"]["evidence"][0]["sentence"] == "rank 1: driver reports: lost"
    assert state["readings"]["gpus"][0]["fault"] is None


def test_an_xid_is_an_edge_that_is_latched_counted_and_outlived(double, watch) -> None:
    watched = watch(xid_ttl_s={"eject": 1.5})
    watched.until(whole)
    double.xid(0, 79)
    state = watched.until(action("eject"))
    (evidence,) = state["judgement"]["evidence"]
    assert (evidence["rank"], evidence["fixed_by_restart"]) == (0, False)
    assert "XID 79 (GPU has fallen off the bus, NVIDIA: RESTART_BM)" in evidence["sentence"]
    double.xid(0, 79)
    watched.until(says(", 2 times"))
    watched.until(action("none"))  # its time to live passed
    double.xid(0, 79)
    watched.until(says(", 3 times"))


def test_new_engine_process_clears_faults_that_a_restart_clears(double, watch) -> None:
    watched = watch()
    watched.until(whole)
    double.xid(0, 31)
    double.xid(0, 48)
    state = watched.until(lambda state: len(state["xids"]) == 2)
    assert [each["fixed_by_restart"] for each in state["judgement"]["evidence"]] == [False, True]
    watched.restart_engine()
    state = watched.until(lambda state: len(state["xids"]) == 1)
    assert state["xids"][0]["code"] == 48


def test_policy_overrides_what_an_xid_leads_to(double, watch) -> None:
    watched = watch(policy={"xid_actions": {}})
    watched.until(whole)
    double.xid(1, 9999)
    assert watched.until(says("XID 9999 (not in the table)"))["judgement"]["action"] == "watch"


def test_an_xid_of_an_unknown_gpu_puts_all_under_suspicion(double, watch) -> None:
    watched = watch(devices=["GPU-double-0"])
    watched.until(whole)
    double.xid(-1, 95)
    assert says("all ranks: XID 95")(watched.until(action("eject")))


def test_a_mig_slice_hears_its_own_xids_and_those_of_the_board(double, watch) -> None:
    double.set({"0.slice": 3, "0.mig": 1})
    watched = watch(devices=["MIG-double-0"])
    state = watched.until(whole)
    (gpu,) = state["readings"]["gpus"]
    assert gpu["identity"]["gpu_instance_id"] == 3
    assert gpu["identity"]["uuid"] == "MIG-double-0"
    assert gpu["wear"]["mig_enabled"] is True
    double.xid(0, 31, instance=2)  # a neighbour's
    double.xid(0, 13, instance=3)
    double.xid(0, 62)
    state = watched.until(says("XID 62"))
    assert {each["code"] for each in state["xids"]} == {13, 62}


def test_missing_event_support_is_reported_and_readings_continue(double, watch) -> None:
    double.set({"return.nvmlDeviceRegisterEvents": 3})
    state = watch().until(lambda state: state["readings"]["events"].startswith("no XID events:"))
    assert state["readings"]["events"] == "no XID events: not supported by this GPU"
    assert state["readings"]["state"] == "present"


def test_failed_wait_for_events_is_reported_and_retried(double, watch) -> None:
    watched = watch()
    watched.until(whole)
    double.set({"return.nvmlEventSetWait_v2": 999})
    watched.until(lambda state: "NVML error 999" in state["judgement"]["statement"])
    double.set({"return.nvmlEventSetWait_v2": None})
    watched.until(lambda state: state["readings"]["events"] == "")
    double.xid(0, 46)
    watched.until(action("eject"))


def test_missing_device_is_reported_and_found_once_it_appears(double, watch) -> None:
    watched = watch(devices=["GPU-double-0", "GPU-double-2"])
    state = watched.until(whole)
    assert state["readings"]["missing"] == [{"name": "GPU-double-2", "why": "NVML error 6", "fault": None}]
    assert state["judgement"]["action"] == "degrade"
    double.set({"gpus": 3})
    state = watched.until(lambda state: whole(state) and state["readings"]["ranks"] == 2)
    assert state["judgement"]["action"] == "none"
    double.xid(2, 79)
    assert watched.until(action("eject"))["judgement"]["worst_rank"] == 1


def test_gpu_lost_before_the_first_reading_counts_as_lost(double, watch) -> None:
    double.set({"1.return.nvmlDeviceGetHandleByIndex_v2": 15})
    state = watch().until(action("eject"))
    sentence = "GPU 1, configured for the engine, is not readable: the GPU is lost"
    assert state["judgement"]["evidence"][0]["sentence"] == sentence


@pytest.mark.parametrize(
    ("lines", "wanted", "words"),
    [
        ({"1.ecc_uncorrected": 2}, "drain", "rank 1: 2 uncorrectable ECC error(s) in the last"),
        ({"1.rows_failed": 1}, "drain", "rank 1: a memory row could not be remapped"),
        ({"1.rows_pending": 1}, "watch", "rank 1: a memory row will be remapped at the next reset"),
        ({"1.retirement_pending": 1}, "watch", "rank 1: a memory page will be retired"),
        ({"1.field230": 4}, "drain", "rank 1: driver requests: drain and reset"),
        ({"1.field230": 2}, "eject", "rank 1: driver requests: node reboot"),
        ({"1.temperature0": 88}, "watch", "rank 1: 88 degrees C (limit 87)"),
        ({"1.throttle": 0x48}, "degrade", "rank 1: hardware thermal slowdown for"),
        ({"1.throttle": 0x88}, "degrade", "rank 1: hardware power brake for"),
        ({"1.links_down": 0b101}, "degrade", "rank 1: NVLink 0, 2 down, 16 of 18 up"),
        ({"1.field52": 9000}, "watch", "rank 1: 8997 NVLink errors in"),
        ({"1.pcie_replays": 5000}, "watch", "rank 1: 4997 PCIe replays in"),
        ({"1.ecc_corrected": 5000}, "watch", "rank 1: 4996 corrected ECC errors in"),
    ],
)
def test_each_fault_is_detected_and_named(double, watch, lines, wanted: str, words: str) -> None:
    watched = watch(policy={"throttled_after_s": 0.05})
    watched.until(whole)
    double.set(lines)
    state = watched.until(says(words))
    assert state["judgement"]["action"] == wanted
    assert state["judgement"]["worst_rank"] == 1


def test_the_command_line_shows_it_once(double) -> None:
    double.set({"0.rows_failed": 1})
    command = [sys.executable, "-m", "engine.gpu", "--device", "0"]
    ran = subprocess.run(
        command, env=double.environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 1, ran.stderr
    assert "a memory row could not be remapped" in ran.stdout


def test_only_two_modules_know_pynvml_and_only_the_child_knows_torch() -> None:
    found: dict[str, set[str]] = {"pynvml": set(), "torch": set()}
    for path in (Path(__file__).parents[3] / "engine").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in {name.split(".")[0] for name in names} & set(found):
                found[name].add(path.name)
    assert found == {"pynvml": {"nvml.py", "nvml_calls.py"}, "torch": {"compute_child.py"}}


def test_the_table_of_the_documentation_is_the_table_of_the_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "gpu.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()]
    listed = {int(code): row[4].strip().split()[0] for row in rows for code in _codes(row[1])}
    assert listed == {code: str(rule.action) for code, rule in XIDS.items()}


def _codes(cell: str) -> list[int]:
    codes: list[int] = []
    for part in cell.split(","):
        first, _, last = part.strip().partition("-")
        codes += range(int(first), int(last or first) + 1)
    return codes
