"""The model's files hang together; that vLLM reads them is shown in tests/with_vllm."""

import json
from pathlib import Path

from chaos.real_vllm.tiny_model import write_model


def read(folder: Path, name: str) -> dict[str, object]:
    content = json.loads((folder / name).read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def test_every_byte_is_a_token_without_end_token(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "made" / "here")
    tokenizer = read(folder, "tokenizer.json")
    model = tokenizer["model"]
    assert isinstance(model, dict)
    vocabulary = model["vocab"]
    assert sorted(vocabulary.values()) == list(range(257))
    # Byte-level names: printing bytes are themselves, the others stand from U+0100 on, in order.
    assert {name: vocabulary[name] for name in ("<s>", "!", "~", "Ā", "Ġ", "Ń")} == {
        "<s>": 0,
        "!": 1 + 0x21,
        "~": 1 + 0x7E,
        "Ā": 1 + 0x00,
        "Ġ": 1 + 0x20,
        "Ń": 1 + 0xAD,
    }
    config = read(folder, "config.json")
    assert config["vocab_size"] == 257
    assert config["eos_token_id"] is None
    assert "eos_token" not in read(folder, "tokenizer_config.json")


def test_model_files_are_deterministic(tmp_path: Path) -> None:
    first, second = write_model(tmp_path / "a"), write_model(tmp_path / "b")
    assert write_model(first) == first
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()
