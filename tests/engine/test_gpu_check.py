"""The deep check: its parent against children that misbehave in every way, and the real child on the CPU."""

import asyncio
import functools
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.gpu_check import CheckOutcome, CheckSettings, check_gpu, check_gpus, main

_ROOT = Path(__file__).parents[2]
_STAGES = ("start", "import", "context", "kernels", "memory", "end")
_QUICK = {**dict.fromkeys(_STAGES, 0.5), "start": 60.0}
# Who does what it should is not hurried: the machine may have much else to do.
_PATIENT = dict.fromkeys(_STAGES, 60.0)


def stand_in(tmp_path: Path, body: str, *, sticks: bool = False) -> CheckSettings:
    """Settings that run ``body`` in place of the real child: it speaks the protocol, and knows no GPU."""
    child = tmp_path / "child.py"
    child.write_text(
        f"import json, os, sys, time\ndef say(**event): print(json.dumps(event), flush=True)\n{body}\n"
    )
    return CheckSettings(child=child, stage_deadline_s=_QUICK if sticks else _PATIENT)


async def checked(tmp_path: Path, body: str, device: str = "3", *, sticks: bool = False):
    return await check_gpu(device, stand_in(tmp_path, body, sticks=sticks), rank=3)


async def test_a_right_answer(tmp_path: Path) -> None:
    check = await checked(tmp_path, 'say(stage="kernels"); say(outcome="ok", detail="fine", gpu_ms=4.25)')
    assert (check.outcome, check.rank, check.evidence, check.gpu_ms) == (CheckOutcome.OK, 3, "fine", 4.25)


async def test_a_wrong_answer_is_not_a_stuck_kernel(tmp_path: Path) -> None:
    body = 'say(stage="kernels"); say(outcome="wrong_result", detail="1 wrong value", gpu_ms=4.0)'
    check = await checked(tmp_path, body)
    assert (check.outcome, check.evidence) == (CheckOutcome.WRONG_RESULT, "1 wrong value")


@pytest.mark.parametrize("stage", ["context", "kernels", "memory"])
async def test_a_stuck_stage_is_named_and_its_process_killed(tmp_path: Path, stage: str) -> None:
    # Deaf to SIGTERM, as a process in a driver is; it leaves its process id behind.
    pid_file = tmp_path / "pid"
    body = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
        f'say(stage="{stage}"); time.sleep(600)'
    )
    check = await checked(tmp_path, body, sticks=True)
    assert (check.outcome, check.stage) == (CheckOutcome.STUCK, stage)
    assert check.evidence == f"stuck in {stage} for 0.5 s, killed"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


async def test_a_slow_import_is_not_the_gpus_fault(tmp_path: Path) -> None:
    check = await checked(tmp_path, 'say(stage="import"); time.sleep(600)', sticks=True)
    assert (check.outcome, check.evidence) == (CheckOutcome.UNAVAILABLE, "import not finished within 0.5 s")


async def test_a_death_without_a_word_is_a_crash(tmp_path: Path) -> None:
    check = await checked(tmp_path, 'say(stage="kernels"); os.abort()')
    assert check.outcome is CheckOutcome.CRASHED
    assert check.evidence == "the check process ended with signal SIGABRT in kernels"


async def test_noise_on_stdout_is_passed_over(tmp_path: Path) -> None:
    body = (
        'print("a library greets"); print("[1, 2]"); print("x" * 200000, flush=True); say(outcome="ok", detail="")'
    )
    assert (await checked(tmp_path, body)).outcome is CheckOutcome.OK


async def test_the_child_sees_one_gpu_in_pci_order(tmp_path: Path) -> None:
    body = (
        'say(outcome="ok", detail=" ".join([os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"],'
        " *sys.argv[1:]]))"
    )
    check = await checked(tmp_path, body, "GPU-double-0")
    assert check.evidence == "GPU-double-0 PCI_BUS_ID cuda:0 1024 64"


async def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    check = await check_gpu("0", CheckSettings(python=str(tmp_path / "python")))
    assert check.outcome is CheckOutcome.UNAVAILABLE
    assert "cannot be started: No such file or directory" in check.evidence


async def test_cancelling_a_check_kills_its_process(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    settings = stand_in(tmp_path, f"open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    task = asyncio.create_task(check_gpu("0", settings))
    limit_s = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < limit_s
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


async def test_several_gpus_are_checked_in_rank_order(tmp_path: Path) -> None:
    body = 'say(outcome="ok" if os.environ["CUDA_VISIBLE_DEVICES"] == "a" else "out_of_memory", detail="")'
    checks = await check_gpus(["a", "b"], stand_in(tmp_path, body))
    assert [(check.rank, check.outcome) for check in checks] == [
        (0, CheckOutcome.OK),
        (1, CheckOutcome.OUT_OF_MEMORY),
    ]


def test_without_torch_the_command_line_says_that_nothing_was_checked(capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("torch is installed here, so its absence cannot be shown")
    assert main(["--device", "cpu"]) == 2
    assert "cpu: unavailable: torch cannot be imported" in capsys.readouterr().out


@functools.cache
def torch_python() -> str:
    """An interpreter with torch: this one, or that of the repository's vLLM environment."""
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    other = os.environ.get("SWITCHGEAR_TORCH_PYTHON", str(_ROOT / ".vllm-venv" / "bin" / "python"))
    if not Path(other).exists():
        pytest.skip("no torch: not in this environment, not in SWITCHGEAR_TORCH_PYTHON, and no .vllm-venv")
    tried = subprocess.run([other, "-c", "import torch"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"torch cannot be imported by {other}: {tried.stderr.strip().splitlines()[-1]}")
    return other


async def test_the_real_check_finds_a_working_cpu_right() -> None:
    check = await check_gpu("cpu", CheckSettings(python=torch_python(), size=256, memory_mib=8))
    assert check.outcome is CheckOutcome.OK, check.evidence
    assert check.gpu_ms is not None


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        (
            "real = torch.mm\n"
            "def mm(a, b):\n    c = real(a, b)\n"
            "    c[5, 7] += 1 if c.dtype == torch.float32 else 0\n    return c\n"
            "torch.mm = mm",
            CheckOutcome.WRONG_RESULT,
            "1 wrong values in the float32 product",
        ),
        (
            "real = torch.mm\n"
            "def mm(a, b):\n    c = real(a, b)\n"
            "    c[0, 0] *= -1 if c.dtype == torch.bfloat16 else 1\n    return c\n"
            "torch.mm = mm",
            CheckOutcome.WRONG_RESULT,
            "1 wrong values in the bfloat16 product",
        ),
        (
            # A cell that holds a wrong bit whatever is written: the device finds both of its copies equal.
            "real = torch.arange\n"
            "def arange(*a, **k):\n    t = real(*a, **k)\n"
            "    if 'device' in k and len(t) > 96: t[96] ^= 1\n    return t\n"
            "torch.arange = arange",
            CheckOutcome.WRONG_RESULT,
            "2 wrong values in the memory pattern",
        ),
        (
            "def mm(a, b): raise RuntimeError('CUDA error: an illegal memory access was encountered')\n"
            "torch.mm = mm",
            CheckOutcome.CONTEXT_ERROR,
            "CUDA error: an illegal memory access was encountered",
        ),
        (
            "def mm(a, b): raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 64.00 MiB')\n"
            "torch.mm = mm",
            CheckOutcome.OUT_OF_MEMORY,
            "CUDA out of memory",
        ),
    ],
)
async def test_the_real_check_tells_faults_apart(tmp_path: Path, fault: str, outcome, words: str) -> None:
    child = tmp_path / "faulty.py"
    child.write_text(
        f"import sys\nsys.path.insert(0, {str(_ROOT / 'engine' / 'gpu')!r})\n"
        f"import torch\n{fault}\nimport compute_child\nsys.exit(compute_child.main(sys.argv[1:]))\n"
    )
    check = await check_gpu("cpu", CheckSettings(python=torch_python(), child=child, size=256, memory_mib=8))
    assert (check.outcome, words in check.evidence) == (outcome, True), json.dumps(check.evidence)
