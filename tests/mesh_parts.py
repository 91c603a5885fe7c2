"""Programs of other products, from their Go modules: Envoy Gateway's egctl, the Gateway API's endpoint picker,
Istio's istiod and istioctl.

``python tests/mesh_parts.py NAME ...`` builds them, once, and prints where they are. They are in the
cache (``$XDG_CACHE_HOME/switchgear/mesh-parts``) that checkouts share. ``EGCTL``, ``ENDPOINT_PICKER``, ``ISTIOD``
and ``ISTIOCTL`` name programs built elsewhere.
Tests build nothing: without its program a test is skipped with the reason.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from tests.go_build import PartsError, built_into, cache
from tests.part_results import recorded_skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPart:
    """A program, and the Go module that it is built from. ``variable`` may name one that is there already.

    ``product``: whose version it has in docs/compatibility.md; several programs may be of one. ``target`` of make
    builds it. ``pins``: folder of a ``go.mod`` that requires this version, for a module whose versions no proxy
    lists.
    """

    name: str
    product: str
    module: str
    package: str
    version: str
    variable: str
    target: str
    pins: Path | None = None

    @property
    def program(self) -> str:
        return self.package.rpartition("/")[2]

    @property
    def wanted(self) -> str:
        """The argument of ``go install``."""
        return f"{self.module}/{self.package}" + ("" if self.pins else f"@v{self.version}")

    @property
    def cached(self) -> Path:
        """Where the pinned version is, or will be."""
        return cache("mesh-parts") / f"{self.name}-{self.version}" / self.program

    def found(self) -> Path | None:
        """The program of the environment or of the cache; None without one."""
        named = os.environ.get(self.variable)
        at = Path(named) if named else self.cached
        return at if at.is_file() else None


ENVOY_GATEWAY: Final = MeshPart(
    name="envoy-gateway",
    product="envoy-gateway",
    module="github.com/envoyproxy/gateway",
    package="cmd/egctl",
    version="1.9.1",
    variable="EGCTL",
    target="mesh-parts",
)
ENDPOINT_PICKER: Final = MeshPart(
    name="endpoint-picker",
    product="endpoint-picker",
    module="sigs.k8s.io/gateway-api-inference-extension",
    package="cmd/epp",
    version="1.2.0",
    variable="ENDPOINT_PICKER",
    target="picker-parts",
    pins=Path(__file__).parent / "with_peers" / "parts",
)
ISTIOD: Final = MeshPart(
    name="istiod",
    product="istio",
    module="istio.io/istio",
    package="pilot/cmd/pilot-discovery",
    # Istio tags no versions that Go accepts: this is its main branch, 1.31-dev, on that day.
    version="0.0.0-20260827124520-eed52ebb66ad",
    variable="ISTIOD",
    target="istio-parts",
    pins=Path(__file__).parent / "istio" / "parts",
)
ISTIOCTL: Final = replace(ISTIOD, name="istioctl", package="istioctl/cmd/istioctl", variable="ISTIOCTL")
PARTS: Final = {one.name: one for one in (ENVOY_GATEWAY, ENDPOINT_PICKER, ISTIOD, ISTIOCTL)}


def required(part: MeshPart) -> Path:
    """The program; skips the test without one."""
    at = part.found()
    if at is None:
        pytest.skip(f"no {part.program}: `make {part.target}` builds it, or {part.variable} names one")
    return at


def version(part: MeshPart) -> str:
    """The version of the program; without one the pinned version, whose tests are skipped."""
    at = part.found()
    return part.version if at is None else built_version(part, at)


def built_version(part: MeshPart, program: Path) -> str:
    """The version of the module that a program was built from: Go writes it into each one, such as 1.9.1."""
    _, _, after = program.read_bytes().partition(f"mod\t{part.module}\tv".encode())
    if not after:
        msg = f"{program} was not built from a version of {part.module}"
        raise PartsError(msg)
    return after.split(b"\t", 1)[0].split(b"\n", 1)[0].decode()


def built(part: MeshPart) -> Path:
    """The program, built now if need be; ``PartsError`` with the reason if that fails."""
    if named := os.environ.get(part.variable):
        if not Path(named).is_file():
            msg = f"{part.variable} names {named}, which is not a file"
            raise PartsError(msg)
        return Path(named)
    built_into(
        part.cached.parent,
        f"{part.program} of {part.module} {part.version}",
        lambda _: ["install", "-ldflags=-s -w", part.wanted],
        otherwise=f"{part.variable} names no program",
        cwd=part.pins,
    )
    return part.cached


def main(names: Sequence[str]) -> int:
    """Print where these programs are; 1, with the reason, if one cannot be obtained."""
    failed = False
    for part in (PARTS[one] for one in names):
        try:
            sys.stdout.write(f"{built(part)}\n")
            sys.stdout.flush()
        except PartsError as why:
            failed = True
            sys.stderr.write(f"{recorded_skip(part.product, part.version, str(why))}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(PARTS)))
