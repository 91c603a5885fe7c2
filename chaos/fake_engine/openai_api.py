"""OpenAI requests and answers in the format of vLLM's API server. Pure.

Only the fields that clients of a resilience layer use are here. What the simulation cannot do (``n`` above 1,
batches of prompts) is refused with 400 instead of faked.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chaos.fake_engine.prefix_cache import CHARACTERS_PER_TOKEN


class RequestError(Exception):
    """A client error: HTTP status and OpenAI error object."""

    def __init__(self, status: int, message: str, error_type: str) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One parsed call. It gets exactly ``max_tokens`` tokens: the fake never stops early.

    ``remote_decode``: another engine will fetch the KV cache and continue.
    """

    chat: bool
    model: str
    streaming: bool
    include_usage: bool
    prompt: str | tuple[int, ...]
    prompt_tokens: int
    max_tokens: int
    remote_decode: bool = False


class _Text(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _StreamOptions(_Text):
    include_usage: bool = False


class _TransferParams(_Text):
    do_remote_decode: bool = False


class _Common(_Text):
    model: str | None = None
    kv_transfer_params: _TransferParams | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: int = 1


class _Completion(_Common):
    prompt: str | Annotated[list[int], Field(min_length=1)]


class _Message(_Text):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _Chat(_Common):
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None


def parse_generation(
    body: bytes, *, chat: bool, model: str, max_model_len: int, adapters: Collection[str] = ()
) -> Generation:
    """Parse the call in ``body`` for the model or an adapter; raises RequestError with 400 or 404, as vLLM would.

    Without ``max_tokens`` a call gets 16, OpenAI's default for completions. vLLM would let a chat run to the end
    of its context; a simulation that never stops early must not.
    """
    try:
        request = (_Chat if chat else _Completion).model_validate_json(body)
    except ValidationError as problem:
        details = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in problem.errors())
        raise RequestError(400, details, "Bad Request") from problem
    if request.model is not None and request.model != model and request.model not in adapters:
        raise RequestError(404, f"The model `{request.model}` does not exist.", "NotFoundError")
    if request.n != 1:
        raise RequestError(400, "this simulated engine supports n=1 only", "BadRequestError")
    asked = request.max_tokens
    if isinstance(request, _Chat):
        asked = request.max_completion_tokens or asked
        prompt: str | tuple[int, ...] = "".join(_content(message) for message in request.messages)
    elif isinstance(request, _Completion) and isinstance(request.prompt, list):
        prompt = tuple(request.prompt)
    else:
        prompt = str(getattr(request, "prompt", ""))
    prompt_tokens = _tokens(prompt) if isinstance(prompt, str) else len(prompt)
    max_tokens = 16 if asked is None else asked
    if prompt_tokens + max_tokens > max_model_len:
        raise RequestError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{prompt_tokens + max_tokens} tokens ({prompt_tokens} in the prompt, {max_tokens} for the answer).",
            "BadRequestError",
        )
    return Generation(
        chat=chat,
        model=request.model or model,
        streaming=request.stream,
        include_usage=request.stream_options is not None and request.stream_options.include_usage,
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        remote_decode=request.kv_transfer_params is not None and request.kv_transfer_params.do_remote_decode,
    )


def error_object(status: int, message: str, error_type: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": error_type, "param": None, "code": status}}


def completion_object(generation: Generation, *, answer_id: str, created: int) -> dict[str, Any]:
    """The answer of a non-streaming call."""
    text = token_text(1, generation.max_tokens)
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "length"}
    if generation.chat:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    kind = "chat.completion" if generation.chat else "text_completion"
    whole = _head(generation, answer_id, created, kind) | {"choices": [choice], "usage": usage_object(generation)}
    if generation.remote_decode:
        whole["kv_transfer_params"] = {"do_remote_prefill": True, "remote_request_id": answer_id}
    return whole


def pooling_object(path: str, model: str) -> dict[str, Any]:
    """The answer of an embedding, pooling, scoring or speech path to one input."""
    if path.startswith("/v1/audio/"):
        return {"text": "t1"}
    if "rerank" in path:
        return {"id": "rerank-1", "model": model, "results": [{"index": 0, "relevance_score": 0.5}]}
    result = {"index": 0, "score": 0.5} if "score" in path else {"index": 0, "embedding": [0.5, 0.5]}
    return {"id": "pool-1", "object": "list", "model": model, "data": [result]}


def stream_event(generation: Generation, *, answer_id: str, created: int, first: int, last: int) -> bytes:
    """The SSE event with tokens ``first`` to ``last`` (1-based, both included)."""
    finish_reason = "length" if last == generation.max_tokens else None
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
    text = token_text(first, last)
    if generation.chat:
        choice["delta"] = {"content": text}
    else:
        choice["text"] = text
    kind = "chat.completion.chunk" if generation.chat else "text_completion"
    return sse_event({**_head(generation, answer_id, created, kind), "choices": [choice]})


def role_event(generation: Generation, *, answer_id: str, created: int) -> bytes:
    """The first event of a chat stream: the role."""
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    return sse_event({**_head(generation, answer_id, created, "chat.completion.chunk"), "choices": [choice]})


def usage_event(generation: Generation, *, answer_id: str, created: int) -> bytes:
    """The last event before ``[DONE]`` for clients that set ``stream_options.include_usage``."""
    kind = "chat.completion.chunk" if generation.chat else "text_completion"
    head = _head(generation, answer_id, created, kind)
    return sse_event({**head, "choices": [], "usage": usage_object(generation)})


def sse_event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def usage_object(generation: Generation) -> dict[str, int]:
    return {
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": generation.max_tokens,
        "total_tokens": generation.prompt_tokens + generation.max_tokens,
    }


def token_text(first: int, last: int) -> str:
    """One numbered word per token, so that lost or duplicate tokens are visible."""
    return "".join(f" t{index}" for index in range(first, last + 1))


def _head(generation: Generation, answer_id: str, created: int, kind: str) -> dict[str, Any]:
    return {"id": answer_id, "object": kind, "created": created, "model": generation.model}


def _content(message: _Message) -> str:
    if isinstance(message.content, list):
        return "".join(str(part.get("text", "")) for part in message.content)
    return message.content or ""


def _tokens(text: str) -> int:
    return max(1, -(-len(text) // CHARACTERS_PER_TOKEN))
