"""What an OpenAI client gets, and how it is refused."""

import asyncio
import json

import pytest

PATHS = ["/v1/completions", "/v1/chat/completions"]


def body(path: str, **more: object) -> dict[str, object]:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    return {**prompt, **more}


def text_of(choice: dict) -> str:
    return choice.get("text") or choice.get("message", choice.get("delta", {})).get("content", "")


def events(raw: str) -> list:
    lines = [line.removeprefix("data: ") for line in raw.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("path", PATHS)
async def test_answer_has_exactly_the_requested_tokens(path, start_engine, client) -> None:
    engine = await start_engine(model="m")
    async with client.post(engine.url + path, json=body(path, model="m", max_tokens=3)) as response:
        answer = await response.json()
        assert response.headers["x-fake-engine"] == "engine-0"
    assert text_of(answer["choices"][0]) == " t1 t2 t3"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    async with client.post(engine.url + path, json=body(path)) as response:
        assert (await response.json())["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("interval", [1, 4])
@pytest.mark.parametrize("path", PATHS)
async def test_stream_has_every_token_once_and_done(path, interval, start_engine, client) -> None:
    engine = await start_engine(stream_interval=interval)
    asked = body(path, stream=True, max_tokens=9, stream_options={"include_usage": True})
    async with client.post(engine.url + path, json=asked) as response:
        assert response.content_type == "text/event-stream"
        *chunks, usage = events(await response.text())
    assert "".join(text_of(c["choices"][0]) for c in chunks) == "".join(f" t{i}" for i in range(1, 10))
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert usage["usage"]["completion_tokens"] == 9
    if "chat" in path:
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("path", "raw", "status"),
    [
        ("/v1/completions", b"{", 400),
        ("/v1/completions", b"{}", 400),
        ("/v1/completions", b'{"prompt": "x", "max_tokens": 0}', 400),
        ("/v1/completions", b'{"prompt": "x", "max_tokens": 5000}', 400),
        ("/v1/completions", b'{"prompt": "x", "n": 2}', 400),
        ("/v1/completions", b'{"prompt": "x", "model": "other"}', 404),
        ("/v1/chat/completions", b'{"prompt": "x"}', 400),
        ("/v1/chat/completions", b'{"messages": []}', 400),
    ],
)
async def test_invalid_request_is_refused_as_by_vllm(path, raw, status, start_engine, client) -> None:
    engine = await start_engine()
    async with client.post(engine.url + path, data=raw) as response:
        assert response.status == status
        error = (await response.json())["error"]
    assert error["code"] == status
    assert error["message"]
    assert engine.book.totals().arrived == 0


async def test_stream_headers_precede_the_first_token(start_engine, client) -> None:
    engine = await start_engine(prefill_s=60.0)
    async with client.post(engine.url + PATHS[0], json=body(PATHS[0], stream=True)) as response:
        assert response.status == 200
        assert engine.calls_in_flight == 1


async def test_first_token_gate_holds_stream_headers(start_engine, client) -> None:
    engine = await start_engine(prefill_s=0.3, first_token_gate=True)
    asked = body(PATHS[0], stream=True, max_tokens=2)
    sent = asyncio.create_task(client.post(engine.url + PATHS[0], json=asked))
    done, _ = await asyncio.wait([sent], timeout=0.1)
    assert not done
    async with await sent as response:
        assert events(await response.text())[-1]["choices"][0]["text"].endswith(" t2")


async def test_engine_information_endpoints(start_engine, client) -> None:
    engine = await start_engine(model="m")
    for path, expected in [("/health", b""), ("/ping", b"")]:
        async with client.get(engine.url + path) as response:
            assert (response.status, await response.read()) == (200, expected)
    async with client.get(f"{engine.url}/v1/models") as response:
        assert [model["id"] for model in (await response.json())["data"]] == ["m"]
    async with client.get(f"{engine.url}/version") as response:
        assert "fake" in (await response.json())["version"]
    async with client.get(f"{engine.url}/load") as response:
        assert await response.json() == {"server_load": 0}


async def test_adapters_are_models_with_a_parent_and_answer(start_engine, client) -> None:
    engine = await start_engine(model="m", lora_modules="sql,chat")

    async def listed() -> dict[str, str | None]:
        async with client.get(f"{engine.url}/v1/models") as response:
            return {one["id"]: one["parent"] for one in (await response.json())["data"]}

    async def status(path: str, **sent: object) -> int:
        async with client.post(engine.url + path, json=sent) as response:
            return int(response.status)

    assert await listed() == {"m": None, "sql": "m", "chat": "m"}
    asked = {"prompt": "x", "max_tokens": 1}
    async with client.post(engine.url + PATHS[0], json={**asked, "model": "sql"}) as response:
        assert (response.status, (await response.json())["model"]) == (200, "sql")
    assert await status("/v1/unload_lora_adapter", lora_name="sql") == 200
    assert await status("/v1/unload_lora_adapter", lora_name="sql") == 404
    assert await status(PATHS[0], **asked, model="sql") == 404
    assert await status("/v1/load_lora_adapter", lora_name="new", lora_path="/x") == 200
    assert await status("/v1/load_lora_adapter", lora_name="new", lora_path="/x") == 400
    assert await listed() == {"m": None, "chat": "m", "new": "m"}
