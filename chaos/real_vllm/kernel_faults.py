"""GPU faults inside a real vLLM's worker: ``--worker-extension-cls kernel_faults.KernelFaults``.

vLLM makes the class a base of its worker, whose methods its developer API calls (``POST /collective_rpc``, with
``VLLM_SERVER_DEV_MODE=1``). The file imports nothing of ours: its folder is on the engine's ``PYTHONPATH``.
"""

_SPIN_CLOCK_HZ = 2_000_000_000
"""No less than the clock of any GPU so far, so that a kernel spins for at least the asked time."""


class _Freed:
    """Memory by its address, as other libraries offer it to torch."""

    def __init__(self, address: int, words: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (words,),
            "typestr": "<f4",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


class KernelFaults:
    """Faults in the stream of the model."""

    def hang_kernel(self, duration_s: float) -> None:
        """Start a kernel that does not end for ``duration_s``, before all further work of the model."""
        import torch  # noqa: PLC0415 - only in the engine

        torch.cuda._sleep(int(duration_s * _SPIN_CLOCK_HZ))

    def fault_kernel(self) -> None:
        """Start a kernel that reads freed memory, which breaks the CUDA context of the engine."""
        import torch  # noqa: PLC0415 - only in the engine

        size_bytes = 256 * 2**20
        address = torch.cuda.caching_allocator_alloc(size_bytes)
        view = torch.as_tensor(_Freed(address, size_bytes // 4), device="cuda")
        torch.cuda.caching_allocator_delete(address)
        torch.cuda.empty_cache()
        view.sum()
