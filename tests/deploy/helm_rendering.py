"""Render the chart with Helm, and query the result."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy import render

Document = Mapping[str, Any]

VALUE_SETS = [
    *sorted(path.name.removesuffix("-values.yaml") for path in (render.CHART / "ci").glob("*-values.yaml")),
    "production",
]
BY_HAND = sorted(
    str(path.relative_to(render.DEPLOY))
    for folder in ("crds", "examples")
    for path in (render.DEPLOY / folder).glob("*.yaml")
)
"""Manifests not rendered from the chart (test_generated_files.py covers the others)."""

WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job")


@functools.cache
def documents(values: str) -> Sequence[Document]:
    """Documents rendered with one set of values."""
    answer = render.template(render.values_file(values))
    assert answer.returncode == 0, answer.stderr
    return parsed(answer.stdout)


@functools.cache
def written(path: str) -> Sequence[Document]:
    """Documents of a file below ``deploy``."""
    return parsed((render.DEPLOY / path).read_text())


def parsed(text: str) -> Sequence[Document]:
    # The C loader: there are thousands of lines.
    return tuple(document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document)


def complaint(values: str, folder: Path) -> str:
    """Helm's error on invalid values, as one line; ``insecure`` defaults to true without ``tls``."""
    given = yaml.safe_load(values)
    if "tls" not in given:
        given.setdefault("insecure", True)
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(given))
    answer = render.template(file)
    assert answer.returncode != 0, "rendered without an error"
    return " ".join(answer.stderr.split())


def of_kind(found: Sequence[Document], *kinds: str) -> Sequence[Document]:
    return [one for one in found if one["kind"] in kinds]


def named(found: Sequence[Document], kind: str, name: str) -> Document:
    (one,) = [one for one in of_kind(found, kind) if one["metadata"]["name"] == name]
    return one


def pods(found: Sequence[Document]) -> Sequence[tuple[Document, Document]]:
    """Workloads with their pod templates."""
    return [(one, one["spec"]["template"]) for one in of_kind(found, *WORKLOADS)]


def containers(template: Document) -> Sequence[Document]:
    """All containers, init containers first."""
    spec = template["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def lasting(template: Document) -> Sequence[Document]:
    """Containers that run as long as the pod: containers and native sidecars."""
    return [
        one
        for one in containers(template)
        if one in template["spec"]["containers"] or one.get("restartPolicy") == "Always"
    ]


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def words(container: Document) -> Sequence[str]:
    return [*container.get("command", ()), *container.get("args", ())]


def ports(container: Document) -> Mapping[str, int]:
    return {one["name"]: one["containerPort"] for one in container.get("ports", ())}


def handlers(container: Document) -> Iterator[tuple[str, Document]]:
    """All probes and lifecycle hooks."""
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        if name in container:
            yield name, container[name]
    for name, hook in container.get("lifecycle", {}).items():
        yield name, hook
