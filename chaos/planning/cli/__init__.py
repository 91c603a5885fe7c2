"""``switchgear plan``: one module per subcommand, imported when it runs, because numpy and scipy are slow to
import.

Exit codes: 0 yes, 1 the answer is no (not enough, or impossible), 2 usage error.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import click

from chaos.planning.error import PlanError
from command_line.lazy_group import LazyCommand, LazyGroup

_QUESTIONS: Final[Mapping[str, LazyCommand]] = MappingProxyType(
    {
        name: LazyCommand(module=f"{__name__}.{name}", summary=summary)
        for name, summary in {
            "redundancy": "Compute spare engines for an availability target, and their cost.",
            "capacity": "Compute the headroom of a pool, also after the loss of a zone.",
            "growth": "Project when growing load exceeds capacity.",
            "whatif": "Predict the effect of lost engines, lost zones, more load or slower engines.",
            "stages": "Size the prefill and decode engines of a route.",
        }.items()
    }
)


class _Plan(LazyGroup):
    """A group that names the extra to install when a package is missing, and reports ``PlanError``."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as error:
            if error.name and error.name.partition(".")[0] in ("numpy", "scipy", "matplotlib"):
                raise click.ClickException(
                    f"switchgear plan needs {error.name}; in a checkout: pip install '.[plan]'"
                ) from error
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PlanError as error:
            raise click.ClickException(str(error)) from error


@click.group(name="plan", cls=_Plan, entries=_QUESTIONS)
def command() -> None:
    """Plan a fleet: spares, capacity, growth and what-if.

    Computed by formula, not simulated; each answer names the formula and its assumptions.
    """
