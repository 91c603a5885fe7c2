"""``switchgear export``: policies as objects of another mesh or gateway, with a loss report."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import click

from command_line.lazy_group import LazyCommand, LazyGroup

_TARGETS: Final[Mapping[str, LazyCommand]] = MappingProxyType(
    {
        "istio": LazyCommand(
            module="istio.cli.export_istio", summary="Istio: DestinationRule, VirtualService and more."
        ),
        "gateway-api": LazyCommand(
            module="istio.cli.export_gateway_api",
            summary="Gateway API: HTTPRoute, InferencePool, Envoy Gateway's policies.",
        ),
    }
)


@click.group(name="export", cls=LazyGroup, entries=_TARGETS)
def command() -> None:
    """Convert policies to objects of another mesh or gateway, and report losses."""
