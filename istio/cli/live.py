"""``switchgear istio``: beside istiod, while it runs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import click

from command_line.lazy_group import LazyCommand, LazyGroup

_ORDERS: Final[Mapping[str, LazyCommand]] = MappingProxyType(
    {
        "run": LazyCommand(
            module="istio.cli.run", summary="Keep Istio's endpoints in step with the engines' verdicts."
        )
    }
)


@click.group(name="istio", cls=LazyGroup, entries=_ORDERS)
def command() -> None:
    """Work beside istiod: engines that are out leave Istio's endpoints."""
