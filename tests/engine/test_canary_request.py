"""Canary requests: one small body per API, and what counts as an answer."""

import typing
import wave
from io import BytesIO
from typing import Any

import pytest

from engine.agent.agent_config import AgentConfig
from engine.canary_request import addresses_ranks, canary_body, missing_result
from policies.pool import Probe

PATHS: tuple[str, ...] = typing.get_args(typing.get_type_hints(AgentConfig)["api"])


def test_agent_and_policy_know_the_same_paths() -> None:
    assert typing.get_args(Probe.model_fields["path"].annotation) == PATHS


@pytest.mark.parametrize("path", [one for one in PATHS if "audio" not in one])
def test_json_body_names_model_and_prompt(path: str) -> None:
    body = canary_body(path, "m", "a word")
    assert isinstance(body, dict)
    assert body["model"] == "m"
    assert "a word" in str(body)


def test_speech_body_holds_a_short_sound_of_its_own() -> None:
    def sound(prompt: str) -> bytes:
        form: Any = canary_body("/v1/audio/transcriptions", "m", prompt)
        return next(
            value for _, headers, value in form._fields if "filename" in headers or "audio/wav" in str(headers)
        )

    with wave.open(BytesIO(sound("a"))) as file:
        assert (file.getframerate(), file.getnchannels()) == (16_000, 1)
        assert 0.1 <= file.getnframes() / file.getframerate() <= 1.0
    assert sound("a") == sound("a") != sound("b"), "no cache knows it"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v1/completions", {"choices": [{"text": ""}]}),
        ("/v1/chat/completions", {"choices": [{"message": {}}]}),
        ("/v1/embeddings", {"data": [{"embedding": [0.1]}]}),
        ("/score", {"data": [{"score": 0.1}]}),
        ("/v1/rerank", {"results": [{"index": 0}]}),
        ("/v1/audio/transcriptions", {"text": ""}),
    ],
)
def test_answer_with_a_result_is_complete_and_without_is_not(path: str, answer: dict[str, Any]) -> None:
    assert missing_result(path, answer) == ""
    assert missing_result(path, {}) != ""
    assert missing_result(path, dict.fromkeys(answer)) != ""


def test_only_generating_paths_address_a_rank() -> None:
    assert [path for path in PATHS if addresses_ranks(path)] == ["/v1/completions", "/v1/chat/completions"]
