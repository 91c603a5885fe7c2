"""Policies of a made-up fleet: pools of engines, and a route for each."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

FIRST_PORT: Final = 20_000
"""Port of the first pool's route; the others follow."""


def pool_documents(pools: int, engines: int, endpoint: Callable[[int], Mapping[str, Any]], **spec: object) -> str:
    """``engines`` engines dealt to ``pools`` pools in turn, with ``spec`` for each pool; JSON is YAML.

    ``endpoint`` makes the endpoint of an engine's number. Pools are ``pool-N``, with routes of the same names.
    """
    documents: list[dict[str, object]] = []
    for place in range(pools):
        name = f"pool-{place}"
        endpoints = [endpoint(number) for number in range(place, engines, pools)]
        pool = {"model": "m", "endpoints": endpoints, **spec}
        route = {"listener": {"port": FIRST_PORT + place}, "pools": [{"pool": name}]}
        documents.append({"kind": "EnginePool", "metadata": {"name": name}, "spec": pool})
        documents.append({"kind": "ModelRoute", "metadata": {"name": name}, "spec": route})
    return "\n---\n".join(json.dumps({"apiVersion": "switchgear.dev/v1alpha1", **one}) for one in documents)
