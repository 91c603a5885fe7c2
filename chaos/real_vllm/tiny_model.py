"""The smallest model that vLLM serves, written as three files: no weights, no download.

vLLM generates random weights (``--load-format dummy``), so its text is noise. Queues, batches, caches, aborts and
hangs are still those of any model. Two choices matter:

- The vocabulary is the 256 bytes, so a prompt has as many tokens as bytes.
- There is no end-of-text token, so every answer has exactly the requested number of tokens.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

CONTEXT_TOKENS: Final = 1024
"""Maximum tokens of prompt and answer together."""

_START: Final = "<s>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Size of the model; by default 2.5 million parameters. A larger one takes longer per scheduler step."""

    context_tokens: int = CONTEXT_TOKENS
    hidden: int = 256
    layers: int = 4
    heads: int = 4


TINY: Final = ModelShape()


def write_model(folder: Path, shape: ModelShape = TINY) -> Path:
    """Write the model to ``folder`` (created if missing) and return it, for ``--model``."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = _vocabulary()
    files: Mapping[str, Any] = {
        "config.json": _config(len(vocabulary), shape),
        "tokenizer.json": _tokenizer(vocabulary),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": _START,
            "model_max_length": shape.context_tokens,
            "chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return folder


def _config(vocabulary_size: int, shape: ModelShape) -> Mapping[str, Any]:
    """A Llama of a few thin layers."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": vocabulary_size,
        "hidden_size": shape.hidden,
        "intermediate_size": 2 * shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.hidden // shape.heads,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context_tokens,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": None,
    }


def _vocabulary() -> Mapping[str, int]:
    """Token ids: the start token, then each byte by its printable name in byte-level tokenizers.

    Source: GPT-2's ``bytes_to_unicode``: printable bytes map to themselves, the others to U+0100 and up.
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (0x100 + number for number in range(256))
    names = [chr(byte) if byte in printing else chr(next(others)) for byte in range(256)]
    return {_START: 0, **{name: 1 + byte for byte, name in enumerate(names)}}


def _tokenizer(vocabulary: Mapping[str, int]) -> Mapping[str, Any]:
    """The tokenizer file of Hugging Face's ``tokenizers``: bytes without merges."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    start = {"id": vocabulary[_START], "content": _START, "special": True}
    matching = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**start, **matching}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": None},
    }
