"""``switchgear plan``: one module per question, imported when it is asked, because the sums need heavy packages.

Exit codes as for all of ``switchgear``: 0 yes, 1 the answer is no (not enough, or impossible), 2 asked wrongly.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import click

from chaos.planning.error import PlanError
from xds_server.cli.lazy_group import LazyCommand, LazyGroup

_QUESTIONS: Final[Mapping[str, LazyCommand]] = MappingProxyType(
    {
        name: LazyCommand(module=f"{__name__}.{name}", summary=summary)
        for name, summary in {
            "redundancy": "How many spare engines a target needs, what they cost, and what they cannot help with.",
            "capacity": "How full a fleet is, how far from too full, and what the loss of a zone leaves.",
            "growth": "When a growing load reaches what the fleet can take.",
            "whatif": "What the loss of engines or a zone, more load or slower engines would do to a pool.",
        }.items()
    }
)


class _Plan(LazyGroup):
    """The group, which says how to get packages that are missing, and turns impossible questions down."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as error:
            if error.name and error.name.partition(".")[0] in ("numpy", "scipy", "matplotlib"):
                raise click.ClickException(
                    f"switchgear plan needs {error.name}: pip install 'switchgear[plan]'"
                ) from error
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PlanError as error:
            raise click.ClickException(str(error)) from error


@click.group(name="plan", cls=_Plan, entries=_QUESTIONS)
def command() -> None:
    """Plan a fleet: spares, capacity, growth, and what would happen if.

    Sums, no simulation: each answer says which formula it is from and what that takes for granted.
    """
