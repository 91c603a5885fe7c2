"""Who is judged: policies, as files, or an Envoy as people configure it without a control plane."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from chaos.testbed.static_envoy import CEILING, NAIVE, PLAIN, TUNED, StaticEnvoyConfig
from policies.findings import PolicyErrors
from policies.load import load
from policies.model import PolicySet
from policies.policy_files import search

STATICS: Final[Mapping[str, StaticEnvoyConfig]] = MappingProxyType(
    {"envoy": PLAIN, "naive": NAIVE, "tuned": TUNED, "static": CEILING}
)
"""By the word that names each: no retries, five naive ones, hand-tuned, with a hand-set ceiling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySetFiles:
    """Policies that are consistent together, and the files they stand in. ``name`` is a path."""

    name: str
    files: tuple[Path, ...]
    policies: PolicySet


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySubject:
    """Switchgear with these policies. ``pool`` is the one under test; None for the usual choice."""

    name: str
    policies: PolicySet
    pool: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSubject:
    """An Envoy whose configuration never changes."""

    name: str
    static: StaticEnvoyConfig


Subject = PolicySubject | StaticSubject


def policy_sets(paths: Sequence[Path]) -> tuple[PolicySetFiles, ...]:
    """The policies in these files and folders: one set, or one of each file.

    Files that contradict each other although each is complete in itself are no single set: a folder of examples,
    say. PolicyErrors, of all files together, where some file is wrong by itself too.
    """
    files = tuple(search(paths).files)
    try:
        together = load(paths)
    except PolicyErrors as problem:
        try:
            alone = {file: load([file]) for file in files}
        except PolicyErrors:
            raise problem from None
        if len(alone) < 2:
            raise
        return tuple(PolicySetFiles(name=str(file), files=(file,), policies=one) for file, one in alone.items())
    return (PolicySetFiles(name=", ".join(map(str, paths)), files=files, policies=together),)


def subjects(words: Sequence[str], pool: str | None = None) -> tuple[Subject, ...]:
    """One or more for each word: the name of a static Envoy, or else a path of policies.

    Policies in a folder that is called so are named by ``./naive`` and the like.
    """
    found: list[Subject] = []
    for word in words:
        if word in STATICS:
            found.append(StaticSubject(name=word, static=STATICS[word]))
        else:
            found += [
                PolicySubject(name=one.name, policies=one.policies, pool=pool) for one in policy_sets([Path(word)])
            ]
    return tuple(found)
