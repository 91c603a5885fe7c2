"""LoRA adapters of an engine, from the list of its models.

vLLM lists an adapter as a model whose ``parent`` is the model that it adapts; a model has none. Adapters are
loaded and unloaded while the engine runs, so the list is read again and again.
"""

from typing import Any, Final

from engine.engine_readings import ProbeFailure

MODELS_PATH: Final = "/v1/models"

LOAD_ADAPTER_PATH: Final = "/v1/load_lora_adapter"
"""vLLM serves it only with VLLM_ALLOW_RUNTIME_LORA_UPDATING."""

ADAPTERS_INTERVAL_S: Final = 2.0
"""Time between two readings: the longest that a loaded adapter waits for requests, and a lost one gets some."""

MAX_ADAPTERS: Final = 1024
"""More are ignored; vLLM keeps at most ``--max-cpu-loras`` in memory."""

MAX_ADAPTER_NAME: Final = 253
"""Longest name that a route can ask for."""


def adapter_names(models: Any) -> tuple[str, ...] | None:
    """Names of the adapters in an answer of ``MODELS_PATH``, sorted; None if the answer has no such list."""
    listed = models.get("data") if isinstance(models, dict) else None
    if isinstance(models, ProbeFailure) or not isinstance(listed, list):
        return None
    names = {
        one["id"]
        for one in listed
        if isinstance(one, dict)
        and isinstance(one.get("id"), str)
        and isinstance(one.get("parent"), str)
        and 0 < len(one["id"]) <= MAX_ADAPTER_NAME
        and one["id"].isprintable()
    }
    return tuple(sorted(names)[:MAX_ADAPTERS])
