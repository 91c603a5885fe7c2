"""Policies from YAML text, and manual decisions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from policies.load import load
from policies.model import PolicySet
from xds_server.decide.decisions import Ceiling, Decisions, EngineDecision, Health
from xds_server.model.fleet import Fleet
from xds_server.translate.translated_resource import TranslatedResource


@pytest.fixture
def policies(tmp_path: Path) -> Callable[..., PolicySet]:
    """Policy set of these documents, written without their ``apiVersion``."""

    def made(*documents: str) -> PolicySet:
        path = tmp_path / "policy.yaml"
        path.write_text(
            "---\n".join(f"apiVersion: switchgear.dev/v1alpha1\n{document}\n" for document in documents)
        )
        return load([path])

    return made


@pytest.fixture
def decided() -> Callable[..., Decisions]:
    """Decisions for a fleet: everything healthy except the engines in ``out``; one admission limit for all."""

    def made(
        fleet: Fleet, *, out: Mapping[str, Health] | None = None, ceiling: int = 10, **more: Any
    ) -> Decisions:
        return Decisions(
            engines={
                engine.id: EngineDecision(
                    health=(out or {}).get(str(engine.id), Health.HEALTHY),
                    reason="",
                    since_s=0,
                    verdict=more.get("verdict"),
                )
                for engines in fleet.pools.values()
                for engine in engines
            },
            zone_weights=more.get("zone_weights", {}),
            ceilings={
                (pool, role): Ceiling(
                    interactive=ceiling, batch=ceiling, retry_percent=50, retry_min_concurrency=3, reason=""
                )
                for pool in fleet.pools
                for role in ("gateway", "sidecar")
            },
        )

    return made


@pytest.fixture
def by_name() -> Callable[..., Mapping[str, TranslatedResource]]:
    """Items of one type by name."""

    def made(items: tuple[TranslatedResource, ...], type_url: str) -> Mapping[str, TranslatedResource]:
        return {item.name: item for item in items if item.type_url == type_url}

    return made
