"""A LoRA adapter of random weights for the tiny model, written as two files."""

import json
import random
import struct
from array import array
from pathlib import Path
from typing import Final

from chaos.real_vllm.tiny_model import TINY, ModelShape

RANK: Final = 8
_TARGETS: Final = ("q_proj", "v_proj")
"""Both as wide as the model: it has as many key heads as heads."""


def write_adapter(folder: Path, *, seed: int, shape: ModelShape = TINY) -> Path:
    """Write an adapter to ``folder`` (created if missing) and return it, for ``--lora-modules NAME=FOLDER``."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)  # noqa: S311 -- weights, no secret
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(_TARGETS),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    header: dict[str, object] = {}
    weights = array("f")
    for layer in range(shape.layers):
        for target in _TARGETS:
            for part, size in (("lora_A", [RANK, shape.hidden]), ("lora_B", [shape.hidden, RANK])):
                begin = weights.itemsize * len(weights)
                weights.extend(rng.gauss(0.0, 0.5) for _ in range(size[0] * size[1]))
                name = f"base_model.model.model.layers.{layer}.self_attn.{target}.{part}.weight"
                end = weights.itemsize * len(weights)
                header[name] = {"dtype": "F32", "shape": size, "data_offsets": [begin, end]}
    # The safetensors format: length of the header, header, data.
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + weights.tobytes())
    return folder
