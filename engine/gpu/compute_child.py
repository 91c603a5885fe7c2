"""GPU part of the deep check: run as a file, in its own process, by any Python with torch.

It imports nothing of ours, so that the engine's interpreter can run it. Output: one JSON object per line,
``{"stage": NAME}`` on entering a stage and ``{"outcome": NAME, "detail": TEXT, ...}`` at the end. A stage without
an end is where it got stuck.

All results are small integers, exact in float32, TF32 and bfloat16 in any order of summation, so no tolerance
hides a wrong bit. Expected values come from a closed form on the CPU.
"""

import json
import sys
import time
from typing import Any

BF16_K = 256  # integers up to 256 are exact in bfloat16, so are all partial sums of 256 ones
FP32_K = 1024  # partial sums stay below 1024 * 49, far under 2**24


def emit(**fields: object) -> None:
    """Write a message for the parent and flush."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def factors(torch: Any, count: int, seed: int, limit: int) -> Any:
    """``count`` integers from -limit to limit without 0, by seed."""
    mixed = (torch.arange(count, dtype=torch.int64) * 2654435761 + seed * 40503) % 2**32 // 65536
    sign = 1 - 2 * (mixed % 2)
    return sign * (mixed // 2 % limit + 1)


class Stopwatch:
    """Device time of the entered sections; wall time on a CPU."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._cuda = device.startswith("cuda")
        self._pairs: list[tuple[Any, Any]] = []
        self._wall_ms = 0.0

    def __enter__(self) -> None:
        self._began_s = time.monotonic()
        if self._cuda:
            pair = [self._torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self._pairs.append((pair[0], pair[1]))
            pair[0].record()

    def __exit__(self, *_: object) -> None:
        self._wall_ms += (time.monotonic() - self._began_s) * 1000
        if self._cuda:
            self._pairs[-1][1].record()

    def total_ms(self) -> float:
        """Wait for the device."""
        if not self._cuda:
            return self._wall_ms
        self._torch.cuda.synchronize()
        return float(sum(began.elapsed_time(ended) for began, ended in self._pairs))


def matmul(torch: Any, watch: Stopwatch, device: str, dtype: Any, *, size: int, inner: int, limit: int) -> int:
    """Number of wrong entries of one product.

    A = u w and B = w v with w of ones and minus ones: each entry of A B is inner * u_i * v_j.
    """
    left, right = factors(torch, size, 1, limit), factors(torch, size, 2, limit)
    signs = factors(torch, inner, 3, 1)
    one, two = torch.outer(left, signs).to(dtype).to(device), torch.outer(signs, right).to(dtype).to(device)
    # The first product of a kind loads its kernel, which takes the host far longer than the product takes the GPU.
    torch.mm(one, two)
    with watch:
        product = torch.mm(one, two)
    return int((product.to("cpu").to(torch.int64) != inner * torch.outer(left, right)).sum().item())


def memory(torch: Any, watch: Stopwatch, device: str, words: int) -> int:
    """Number of wrong words: an address-dependent pattern and its complement.

    The device compares all words; a sample is compared here too, in case the device compares wrongly.
    """
    _differences(torch, device, 1, 0)  # loads the kernels
    wrong = 0
    for flip in (0, -1):
        with watch:
            held, different = _differences(torch, device, words, flip)
        wrong += int(different.item())
        step = max(1, words // 65536)
        sample = held[::step].to("cpu")
        expected = torch.arange(0, words, step, dtype=torch.int32).mul_(-1640531527).bitwise_xor_(flip)
        wrong += int((sample != expected).sum().item())
    return wrong


def _differences(torch: Any, device: str, words: int, flip: int) -> tuple[Any, Any]:
    """The pattern, and the number of words in which it differs when written twice."""
    held, again = (
        torch.arange(words, dtype=torch.int32, device=device).mul_(-1640531527).bitwise_xor_(flip)
        for _ in range(2)
    )
    return held, (held != again).sum()


def check(torch: Any, device: str, size: int, memory_mib: int) -> None:
    """Run every stage on ``device`` and report the outcome."""
    cuda = device.startswith("cuda")
    if cuda and not torch.cuda.is_available():
        emit(outcome="unavailable", detail="this torch finds no CUDA device")
        return
    emit(stage="context")
    torch.ones(1, device=device).add_(1)
    if cuda:
        torch.cuda.synchronize()
        # The first product loads cuBLAS, which may take seconds: not of the kernels' deadline.
        torch.mm(torch.ones(8, 8, device=device), torch.ones(8, 8, device=device))
        torch.cuda.synchronize()
    watch = Stopwatch(torch, device)
    emit(stage="kernels")
    wrong = {
        "float32 product": matmul(torch, watch, device, torch.float32, size=size, inner=FP32_K, limit=7),
        "bfloat16 product": matmul(torch, watch, device, torch.bfloat16, size=size, inner=BF16_K, limit=1),
    }
    emit(stage="memory")
    wrong["memory pattern"] = memory(torch, watch, device, memory_mib * 2**20 // 4)
    gpu_ms = watch.total_ms()
    bad = {name: count for name, count in wrong.items() if count}
    if bad:
        detail = ", ".join(f"{count} wrong values in the {name}" for name, count in bad.items())
        emit(outcome="wrong_result", detail=detail, gpu_ms=gpu_ms)
    else:
        emit(outcome="ok", detail=f"torch {torch.__version__}", gpu_ms=gpu_ms)


def outcome_of(torch: Any, error: RuntimeError) -> str:
    """Outcome of a torch error, by CUDA's message."""
    text = str(error).lower()
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text:
        return "out_of_memory"
    # Exclusive compute mode: only the engine may use the GPU; not a fault.
    if "busy or unavailable" in text:
        return "unavailable"
    return "context_error"


def main(argv: list[str]) -> int:
    """``DEVICE SIZE MEMORY_MIB``; the outcome is on stdout, exit 0 means it was written."""
    device, size, memory_mib = argv[0], int(argv[1]), int(argv[2])
    emit(stage="import")
    try:
        import torch  # noqa: PLC0415 - slow, optional, and a stage of its own
    except ImportError as error:
        emit(outcome="unavailable", detail=f"torch cannot be imported: {error}")
        return 0
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            check(torch, device, size, memory_mib)
    except RuntimeError as error:
        emit(outcome=outcome_of(torch, error), detail=str(error).strip().splitlines()[0][:300])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
