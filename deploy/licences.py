"""The page docs/licences.md: what Switchgear needs to run, and the licence of each package.

The metadata of installed packages says it, so it needs an environment with all of them, such as .venv.
``deploy/generated.py`` writes the page.
"""

import importlib.metadata
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "licences.md"
ROOT_PACKAGE: Final = "switchgear"
UNKNOWN: Final = "not said"
LONGEST_NAME: Final = 60
"""A field `License` that is longer holds the text of a licence and not its name."""

HEAD: Final = """\
# Licences

Switchgear is under the [Apache License 2.0](https://www.apache.org/licenses/LICENSE-2.0). This is what it needs to
run, direct and through others, and the licence that each package gives for itself in its metadata, in the versions
of `requirements.lock`. Written by `make generated`; a test compares the page with what is installed.

What only some need is not here: `switchgear[envoy]`, `[otel]`, `[report]`, `[plan]` and `[engine-gpu]` bring
packages of their own, and so does working on Switchgear.

| command | what it does |
|---|---|
| `make sbom` | writes `sbom.json` (CycloneDX): the packages of this page with their versions |
| `make audit` | asks PyPI for known vulnerabilities of all in `requirements.lock`; fails when there are some |

Both set up `.venv-audit` by themselves. Where PyPI's data cannot be reached, `make audit` says that nothing was
audited, and that is no failure.

| package | licence | needed by |
|---|---|---|
"""


def licence(distribution: Distribution) -> str:
    """What a package says of its own licence: an expression before a name before a classifier."""
    metadata = distribution.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    name = (metadata.get("License") or "").strip()
    if name and "\n" not in name and len(name) <= LONGEST_NAME:
        return name
    classifiers = [
        one.rpartition(" :: ")[2] for one in metadata.get_all("Classifier") or () if one.startswith("License :: ")
    ]
    return ", ".join(classifiers) or UNKNOWN


def _wanted(distribution: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in distribution.requires or ():
        one = Requirement(text)
        # An extra that nobody asked for is asked about as the empty one, which no marker names.
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield one


def required_packages(root: str = ROOT_PACKAGE) -> Mapping[str, frozenset[str]]:
    """Who needs it, for each installed package that ``root`` needs to run, by normal form of their names."""
    needed_by: dict[str, set[str]] = {}
    todo = [(root, frozenset[str]())]
    seen = set(todo)
    while todo:
        name, extras = todo.pop()
        for one in _wanted(importlib.metadata.distribution(name), extras):
            found = str(canonicalize_name(one.name))
            try:
                importlib.metadata.distribution(found)
            except PackageNotFoundError:
                continue
            needed_by.setdefault(found, set()).add(str(canonicalize_name(name)))
            step = (found, frozenset(one.extras))
            if step not in seen:
                seen.add(step)
                todo.append(step)
    return {name: frozenset(by) for name, by in needed_by.items()}


def rows(needed_by: Mapping[str, frozenset[str]]) -> Mapping[str, str]:
    """The line of each package, by its name and in the order of names."""
    said = {name: licence(importlib.metadata.distribution(name)) for name in sorted(needed_by)}
    return {name: f"| {name} | {words} | {', '.join(sorted(needed_by[name]))} |" for name, words in said.items()}


def page() -> str:
    """The page as it would be with what is installed here."""
    return HEAD + "".join(f"{row}\n" for row in rows(required_packages()).values())
