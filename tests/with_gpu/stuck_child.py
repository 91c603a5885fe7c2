"""A deep check whose kernel never ends: in place of ``engine/gpu/compute_child.py``, with its protocol."""

import json
import sys


def emit(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


emit(stage="import")
import torch  # noqa: E402 - a stage of its own

emit(stage="context")
torch.ones(1, device="cuda:0").add_(1)
torch.cuda.synchronize()
emit(stage="kernels")
torch.cuda._sleep(10**15)  # days
torch.cuda.synchronize()
emit(outcome="ok", gpu_ms=0.0)
