"""``switchgear istio``: work alongside a running istiod."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import click

from command_line.lazy_group import LazyCommand, LazyGroup

_ORDERS: Final[Mapping[str, LazyCommand]] = MappingProxyType(
    {"run": LazyCommand(module="istio.cli.run", summary="Remove ejected engines from Istio's endpoints.")}
)


@click.group(name="istio", cls=LazyGroup, entries=_ORDERS)
def command() -> None:
    """Work alongside istiod: remove ejected engines from its endpoints."""
