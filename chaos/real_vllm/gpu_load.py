"""Work for a GPU, by torch, in a process of its own: ``gpu_load.py KIND [AMOUNT]``.

Of ours it imports ``kernel_faults`` alone, so that any Python with torch can run it. It prints one JSON line once
the work has begun, and ends when stdin ends.
"""

import json
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any


def begun(**fields: object) -> None:
    """Tell the test that the work has begun."""
    sys.stdout.write(json.dumps({"begun": True, **fields}) + "\n")
    sys.stdout.flush()


def multiply(torch: Any) -> None:
    """Products without end until stdin ends: a busy GPU."""
    waiting = threading.Thread(target=sys.stdin.read, daemon=True)
    waiting.start()
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    begun()
    while waiting.is_alive():
        for _ in range(50):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()


def spin(torch: Any, seconds: float) -> None:
    """One kernel that does not end for ``seconds``."""
    from kernel_faults import KernelFaults  # noqa: PLC0415 - found only where this runs as a file

    torch.ones(1, device="cuda")
    KernelFaults().hang_kernel(seconds)
    begun()
    sys.stdin.read()


def fill(torch: Any, left_mib: float) -> None:
    """Take all memory of the GPU but ``left_mib``."""
    torch.ones(1, device="cuda")
    free, _total = torch.cuda.mem_get_info()
    held = torch.empty(int(free - left_mib * 2**20), dtype=torch.uint8, device="cuda")
    begun(free_bytes=torch.cuda.mem_get_info()[0], held_bytes=held.numel())
    sys.stdin.read()


def fault(torch: Any) -> None:
    """A kernel that reads memory which is not there any more; ends with torch's error."""
    from kernel_faults import KernelFaults  # noqa: PLC0415 - found only where this runs as a file

    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    begun()
    sys.stdin.readline()
    KernelFaults().fault_kernel()
    torch.cuda.synchronize()


def main(argv: list[str]) -> None:
    import torch  # noqa: PLC0415 - slow

    kind, amount = argv[0], [float(one) for one in argv[1:]]
    kinds: Mapping[str, Callable[..., None]] = {"multiply": multiply, "spin": spin, "fill": fill, "fault": fault}
    kinds[kind](torch, *amount)


if __name__ == "__main__":
    main(sys.argv[1:])
