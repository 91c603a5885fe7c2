"""Hold a GpuSource and print what it knows, one JSON object per line, until stdin ends."""

import json
import sys
import threading
import time

import structlog

from engine.gpu.__main__ import json_record
from engine.gpu.gpu_judgement import judge_gpu
from engine.gpu.gpu_policy import GpuAction, GpuPolicy
from engine.gpu.gpu_source import GpuSampling, GpuSource


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    settings = json.loads(sys.argv[1])
    ttl_s = {GpuAction(name): seconds for name, seconds in settings.pop("xid_ttl_s", {}).items()}
    policy = GpuPolicy(xid_ttl_s=ttl_s, **settings.pop("policy", {}))
    quick = {"interval_s": 0.02, "wear_interval_s": 0.02, "reopen_s": 0.05, "event_wait_ms": 50}
    source = GpuSource(devices=settings.pop("devices", ()), sampling=GpuSampling(**{**quick, **settings}))
    over = threading.Event()

    def obey() -> None:
        for line in sys.stdin:
            if line.strip() == "restarted":
                source.engine_restarted()
        over.set()

    threading.Thread(target=obey, daemon=True).start()
    source.open()
    while not over.is_set():
        began_s = time.monotonic()
        readings, xids = source.read(), source.xids()
        read_ms = (time.monotonic() - began_s) * 1000
        state = json_record(readings, xids, judge_gpu(readings, xids, policy, time.monotonic()))
        sys.stdout.write(json.dumps({**state, "read_ms": read_ms}) + "\n")
        sys.stdout.flush()
        over.wait(0.02)
    source.close(timeout_s=0.5)


main()
