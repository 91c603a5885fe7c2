"""Subjects under test: policies from files, or a preset Envoy without a control plane."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from chaos.testbed.static_envoy import CEILING, NAIVE, PLAIN, TUNED, StaticEnvoyConfig
from policies.findings import PolicyErrors
from policies.load import load_contents, load_found
from policies.model import PolicySet
from policies.policy_files import read, read_from, search

STATICS: Final[Mapping[str, StaticEnvoyConfig]] = MappingProxyType(
    {"envoy": PLAIN, "naive": NAIVE, "tuned": TUNED, "static": CEILING}
)
"""Presets by name: no retries, five retries, hand-tuned, hand-set admission limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySetFiles:
    """Consistent policies and their files. ``name`` is a path."""

    name: str
    files: tuple[Path, ...]
    policies: PolicySet


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySubject:
    """Switchgear with these policies. ``pool`` is under test; None: the one with the largest route weight."""

    name: str
    policies: PolicySet
    pool: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSubject:
    """A preset Envoy; its configuration never changes."""

    name: str
    static: StaticEnvoyConfig


Subject = PolicySubject | StaticSubject

STDIN: Final = Path("-")


def policy_sets(paths: Sequence[Path]) -> tuple[PolicySetFiles, ...]:
    """The policies in these files and folders (``-``: stdin), as one set, or as one set per file.

    Files that are complete by themselves but contradict each other, such as a folder of examples, are separate
    sets. Raises PolicyErrors for all files together if a file is invalid by itself.
    """
    found = search([path for path in paths if path != STDIN])
    contents = {path: read(path) for path in found.files}
    if STDIN in paths:
        contents[Path("<stdin>")] = read_from(sys.stdin.buffer)
    try:
        together = load_found(found, contents, paths)
    except PolicyErrors as problem:
        if len(contents) < 2:
            raise
        try:
            alone = {file: load_contents({file: one}) for file, one in contents.items() if isinstance(one, bytes)}
        except PolicyErrors:
            raise problem from None
        if len(alone) < len(contents) or found.problems:
            raise
        return tuple(PolicySetFiles(name=str(file), files=(file,), policies=one) for file, one in alone.items())
    name = ", ".join("<stdin>" if path == STDIN else str(path) for path in paths)
    return (PolicySetFiles(name=name, files=tuple(contents), policies=together),)


def combined_subjects(words: Sequence[str], pool: str | None = None) -> tuple[Subject, ...]:
    """The subjects of ``-f``: each preset by itself, and all paths together."""
    presets = [word for word in words if word in STATICS]
    paths = [Path(word) for word in words if word not in STATICS]
    return (*subjects(presets), *(_policy_subjects(paths, pool) if paths else ()))


def subjects(words: Sequence[str], pool: str | None = None) -> tuple[Subject, ...]:
    """The subjects of ``--against``: each word is a preset or a path of policies.

    A folder with the name of a preset is written ``./naive``.
    """
    found: list[Subject] = []
    for word in words:
        if word in STATICS:
            found.append(StaticSubject(name=word, static=STATICS[word]))
        else:
            found += _policy_subjects([Path(word)], pool)
    return tuple(found)


def _policy_subjects(paths: Sequence[Path], pool: str | None) -> list[Subject]:
    return [PolicySubject(name=one.name, policies=one.policies, pool=pool) for one in policy_sets(paths)]
