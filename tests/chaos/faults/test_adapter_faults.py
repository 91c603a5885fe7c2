"""A lost adapter: direct callers get 404 for it, the model is served, and healing or a load brings it back."""

from chaos.faults.adapter_lost import AdapterLostFault
from tests.chaos.faults.small_lab import InjectedFault, controlled, site


async def test_engine_without_its_adapter_serves_its_model(start_engine, client) -> None:
    engine = await start_engine(prefill_s=0.0, token_s=0.002, lora_modules="sql,law")

    async def status(model: str) -> int:
        body = {"model": model, "prompt": "x", "max_tokens": 1}
        async with client.post(f"{engine.url}/v1/completions", json=body) as answer:
            return answer.status

    async def listed() -> set[str]:
        async with client.get(f"{engine.url}/v1/models") as answer:
            return {one["id"] for one in (await answer.json())["data"] if one["parent"]}

    async with controlled(engine) as place:
        struck = InjectedFault(site(client, place), AdapterLostFault(), place.name)
        assert [await status(model) for model in ("fake-model", "sql", "law")] == [200, 200, 200]
        await struck.pull()
        assert [await status(model) for model in ("fake-model", "sql", "law")] == [200, 404, 404]
        assert await listed() == set()
        load = {"lora_name": "new", "lora_path": "/new"}
        async with client.post(f"{engine.url}/v1/load_lora_adapter", json=load) as answer:
            assert answer.status == 200
        assert [await status(model) for model in ("new", "sql")] == [200, 404]
        await struck.release()
        assert await listed() == {"sql", "law", "new"}
        assert [await status(model) for model in ("new", "sql", "law")] == [200, 200, 200]
