"""Canary requests of each API: the smallest request that needs the engine's model, and what its answer must hold.

A completion of one token for generating engines, one short text for embedding, pooling and scoring engines, a
fraction of a second of noise for speech. The path of the probe selects one.
"""

import io
import random
import wave
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp

CanaryBody = dict[str, Any] | aiohttp.FormData

_SPEECH_PATHS: Final = ("/v1/audio/transcriptions", "/v1/audio/translations")
_RATE_HZ: Final = 16_000
_NOISE_S: Final = 0.25


def _completion(prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": False}


def _chat(prompt: str) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
    }


def _text(prompt: str) -> dict[str, Any]:
    return {"input": prompt}


def _scoring(prompt: str) -> dict[str, Any]:
    return {"text_1": prompt, "text_2": prompt}


def _reranking(prompt: str) -> dict[str, Any]:
    return {"query": prompt, "documents": [prompt]}


_BODIES: Final[Mapping[str, Callable[[str], dict[str, Any]]]] = {
    "/v1/completions": _completion,
    "/v1/chat/completions": _chat,
    "/v1/embeddings": _text,
    "/pooling": _text,
    "/classify": _text,
    "/score": _scoring,
    "/v1/score": _scoring,
    "/rerank": _reranking,
    "/v1/rerank": _reranking,
}
_GENERATING: Final = ("/v1/completions", "/v1/chat/completions")


def canary_body(path: str, model: str, prompt: str) -> CanaryBody:
    """Body of the canary for ``path``; ``prompt`` seeds the noise of a speech probe."""
    if path in _SPEECH_PATHS:
        form = aiohttp.FormData()
        form.add_field("model", model)
        form.add_field("response_format", "json")
        form.add_field("temperature", "0")
        form.add_field("file", _noise(prompt), filename="probe.wav", content_type="audio/wav")
        return form
    return {"model": model, **_BODIES[path](prompt)}


def addresses_ranks(path: str) -> bool:
    """Whether vLLM lets a request to this path name its data-parallel rank."""
    return path in _GENERATING


def missing_result(path: str, answer: Mapping[str, Any]) -> str:
    """What a 200 answer of this path lacks; empty if it is complete."""
    if path in _SPEECH_PATHS:
        return "" if isinstance(answer.get("text"), str) else "text"
    if path not in _GENERATING:
        results = answer.get("results" if "rerank" in path else "data")
        return "" if isinstance(results, list) and results else "result"
    choices = answer.get("choices")
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        return "choice"
    token = isinstance(choices[0].get("text"), str) or isinstance(choices[0].get("message"), dict)
    return "" if token else "token"


def _noise(seed: str) -> bytes:
    """A short WAV file of quiet noise."""
    rng = random.Random(seed)  # noqa: S311 -- content of a probe
    samples = b"".join(
        rng.randint(-64, 64).to_bytes(2, "little", signed=True) for _ in range(int(_RATE_HZ * _NOISE_S))
    )
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(_RATE_HZ)
        writer.writeframes(samples)
    return file.getvalue()
