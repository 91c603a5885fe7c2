"""Kubernetes' own programs, for tests with a real API server: kube-apiserver, its etcd, controllers, kubectl.

``python tests/cluster_parts.py newest`` builds them, once, from the Go modules that ``tests/kubernetes/parts``
pins, and prints their folder; ``oldest`` builds the oldest release that the chart accepts. With ``--built``
nothing is built. They are in the cache (``$XDG_CACHE_HOME/switchgear/cluster-parts``) that checkouts share.
``KUBE_APISERVER`` and ``ETCD`` name programs built elsewhere; ``KUBE_CONTROLLER_MANAGER`` and ``KUBECTL`` may join
them.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.go_build import PartsError, built_into, cache
from tests.part_results import recorded_skip

SOURCES: Final = Path(__file__).parent / "kubernetes" / "parts"
RELEASES: Final = {"newest": "go.mod", "oldest": "oldest.mod"}
"""Each release that tests may ask for, and the file of its modules."""
VARIABLES: Final = {
    "KUBE_APISERVER": "kube-apiserver",
    "ETCD": "etcd",
    "KUBE_CONTROLLER_MANAGER": "kube-controller-manager",
    "KUBECTL": "kubectl",
}
_NEEDED: Final = ("KUBE_APISERVER", "ETCD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The programs of one cluster. ``controllers``: None where no kube-controller-manager is given."""

    apiserver: Path
    etcd: Path
    controllers: Path | None = None

    @property
    def version(self) -> str:
        """What kube-apiserver calls its release, such as v1.37.2."""
        said = subprocess.run([self.apiserver, "--version"], check=True, capture_output=True, text=True).stdout
        return said.split()[-1]


def from_environment() -> Parts | None:
    """The programs that the environment names; None unless both needed ones are named."""
    named = {name: os.environ.get(name) for name in VARIABLES}
    apiserver, etcd = (named[name] for name in _NEEDED)
    if not (apiserver and etcd):
        return None
    controllers = named["KUBE_CONTROLLER_MANAGER"]
    return Parts(
        apiserver=Path(apiserver), etcd=Path(etcd), controllers=Path(controllers) if controllers else None
    )


def parts_in(at: Path) -> Parts:
    """The programs of a folder that ``built`` made."""
    found = {name: at / program for name, program in VARIABLES.items()}
    return Parts(
        apiserver=found["KUBE_APISERVER"], etcd=found["ETCD"], controllers=found["KUBE_CONTROLLER_MANAGER"]
    )


def folder(release: str) -> Path:
    """Where a release's programs are, or will be: by its version and the text of what is built."""
    modules = SOURCES / RELEASES[release]
    text = b"".join(
        path.read_bytes() for path in (modules, modules.with_suffix(".sum"), *sorted(SOURCES.glob("*/*.go")))
    )
    return cache("cluster-parts") / f"{version(release)}-{hashlib.sha256(text).hexdigest()[:12]}"


def version(release: str) -> str:
    """The version of Kubernetes that a release pins."""
    found = re.search(
        r"^\tk8s\.io/kubernetes (v[0-9.]+)$", (SOURCES / RELEASES[release]).read_text(), re.MULTILINE
    )
    assert found is not None, "the modules require k8s.io/kubernetes"
    return found[1]


def existing(release: str) -> Path:
    """The folder of a release's programs; ``PartsError`` if they are not built."""
    at = folder(release)
    if not at.is_dir():
        msg = f"not built on this machine; `make cluster-parts RELEASE={release}` builds it"
        raise PartsError(msg)
    return at


def variables(release: str) -> Mapping[str, str]:
    """What to add to the environment for a built release; ``PartsError`` if it is not built."""
    at = existing(release)
    return {name: str(at / program) for name, program in VARIABLES.items()}


def built(release: str) -> Path:
    """The folder of a release's programs, built now if need be; ``PartsError`` with the reason if that fails."""
    major, minor, _ = version(release).removeprefix("v").split(".")
    stamp = {"gitVersion": version(release), "gitMajor": major, "gitMinor": minor}
    flags = " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{key}={text}" for key, text in stamp.items())])
    return built_into(
        folder(release),
        f"Kubernetes {version(release)}",
        lambda at: ["build", f"-modfile={RELEASES[release]}", f"-ldflags={flags}", "-o", f"{at}/", "./..."],
        otherwise="KUBE_APISERVER and ETCD name no programs",
        cwd=SOURCES,
    )


def main(release: str, *, build: bool = True) -> int:
    """Print where the programs of a release are; 1 with the reason where they cannot be obtained.

    ``build``: if they are not in the cache.
    """
    if from_environment() is not None:
        sys.stdout.write(" ".join(os.environ[name] for name in _NEEDED) + "\n")
        return 0
    try:
        sys.stdout.write(f"{built(release) if build else existing(release)}\n")
    except PartsError as why:
        sys.stderr.write(f"{recorded_skip('kubernetes', version(release), str(why))}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], build="--built" not in sys.argv))
