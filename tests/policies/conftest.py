"""Policies in a temporary folder, and the codes that they draw."""

from collections.abc import Callable
from pathlib import Path

import pytest

from policies.findings import PolicyError, PolicyErrors
from policies.lints.lint import lint
from policies.load import load
from policies.model import PolicySet

NAMES = {"EnginePool": "chat", "ModelRoute": "front", "ResiliencePolicy": "strict"}

SOUND = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: llama
  endpoints:
    - {address: 10.0.0.1, port: 8000, zone: a}
    - {address: 10.0.0.2, port: 8000, zone: b}
    - {address: 10.0.0.3, port: 8000, zone: c}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: front}
spec:
  listener: {port: 80}
  pools: [{pool: chat}]
"""
"""A pool and a route that leave nothing to say."""


def completed(example: str) -> str:
    """The example with the apiVersion and metadata it leaves out."""
    parts = []
    for part in example.split("---\n"):
        lines = part
        if "metadata:" not in part and part.startswith("kind: "):
            lines = part.replace("\n", f"\nmetadata: {{name: {NAMES[part.split()[1]]}}}\n", 1)
        if "apiVersion:" not in part and part.startswith("kind: "):
            lines = "apiVersion: switchgear.dev/v1alpha1\n" + lines
        parts.append(lines)
    return "---\n".join(parts)


def rest_of(example: str) -> str:
    """The sound documents whose kind the example does not bring; the pool also where none is named chat."""
    documents = SOUND.split("---\n")
    pool = (
        []
        if "kind: EnginePool" in example and ("name:" not in example or "name: chat" in example)
        else documents[:1]
    )
    route = [] if "kind: ModelRoute" in example else documents[1:]
    return "---\n".join(pool + route)


def said_of(folder: Path) -> set[str]:
    """Codes of all errors, or else of all findings, of the files in a folder."""
    try:
        return {finding.code for finding in lint(load([folder]))}
    except PolicyErrors as errors:
        return {error.code for error in errors.exceptions if isinstance(error, PolicyError)}


@pytest.fixture
def errors_of(tmp_path: Path) -> Callable[[str | bytes], list[PolicyError]]:
    """All errors of one file with this content; empty when it can be used."""

    def errors(content: str | bytes) -> list[PolicyError]:
        path = tmp_path / "policy.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        try:
            load([path])
        except PolicyErrors as group:
            return [error for error in group.exceptions if isinstance(error, PolicyError)]
        return []

    return errors


@pytest.fixture
def codes_of_example(tmp_path: Path) -> Callable[[str], set[str]]:
    """Codes drawn by an example, with valid documents of the kinds it lacks."""

    def codes(example: str) -> set[str]:
        (tmp_path / "example.yaml").write_text(completed(example))
        if rest := rest_of(example):
            (tmp_path / "rest.yaml").write_text(rest)
        return said_of(tmp_path)

    return codes


@pytest.fixture
def sound() -> str:
    """A pool and a route that leave nothing to say."""
    return SOUND


@pytest.fixture(scope="session")
def sound_policies(tmp_path_factory: pytest.TempPathFactory) -> PolicySet:
    """The same, loaded."""
    path = tmp_path_factory.mktemp("sound") / "a.yaml"
    path.write_text(SOUND)
    return load([path])
