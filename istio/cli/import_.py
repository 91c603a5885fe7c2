"""``switchgear import``: policies from the configuration of other tools."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import click

from command_line.lazy_group import LazyCommand, LazyGroup

_ORIGINS: Final[Mapping[str, LazyCommand]] = MappingProxyType(
    {
        "production-stack": LazyCommand(
            module="istio.cli.import_production_stack", summary="Helm values of vLLM's production-stack."
        ),
        "inferencepool": LazyCommand(
            module="istio.cli.import_inferencepool", summary="Gateway API InferencePools."
        ),
        "istio": LazyCommand(
            module="istio.cli.import_istio", summary="Istio's DestinationRules and VirtualServices."
        ),
    }
)


@click.group(name="import", cls=LazyGroup, entries=_ORIGINS)
def command() -> None:
    """Convert the configuration of another tool to policies, and list unsupported settings."""
