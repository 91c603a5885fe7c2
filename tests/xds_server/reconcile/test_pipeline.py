"""From policies to snapshots: the cache between two runs."""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from policies.load import load_contents
from xds_server.model.fleet import declared
from xds_server.model.view import View
from xds_server.reconcile import pipeline
from xds_server.reconcile.pipeline import BuildInputs, Pipeline
from xds_server.translate.translated_resource import TranslatedResource

POLICIES = b"""\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec: {model: m, endpoints: [{address: 10.0.0.1, port: 8000}, {address: 10.0.0.2, port: 8000}]}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: chat}
spec: {listener: {port: 10000}, pools: [{pool: chat}]}
"""
HERE = View(zone="a")
Made = Callable[[View], object]


def asked_about(stages: Pipeline, inputs: BuildInputs) -> Made:
    built = stages.build(inputs)
    return lambda view: stages.peek(built, view)


def come_and_gone(stages: Pipeline, inputs: BuildInputs) -> Made:
    return lambda view: stages.build(replace(inputs, views=frozenset({HERE, view})))


@pytest.mark.parametrize("of", [asked_about, come_and_gone])
def test_unused_views_are_dropped(
    of: Callable[[Pipeline, BuildInputs], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "MAX_STALE_VIEWS", 4)
    policies = load_contents({Path("chat.yaml"): POLICIES})
    inputs = BuildInputs(
        policies=policies,
        fleet=declared(policies),
        views=frozenset({HERE}),
        proxies_by_role={},
        now_s=0.0,
    )

    def items() -> int:
        gc.collect()
        return sum(isinstance(one, TranslatedResource) for one in gc.get_objects())

    before = items()
    make = of(Pipeline(), inputs)
    make(View(zone="first"))
    of_one = items() - before
    for turn in range(100):
        make(View(zone=f"z{turn}", listen_address=f"10.9.0.{turn}"))
    assert 0 < items() - before < 10 * of_one
