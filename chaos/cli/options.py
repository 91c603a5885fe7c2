"""Options that several subcommands have: whom to judge, with what, and where to keep what was seen."""

from pathlib import Path
from typing import Final

import click

SUBJECT: Final = click.option(
    "--policies", required=True, metavar="SUBJECT", help="A file or folder of policies, or a static Envoy."
)
AGAINST: Final = click.option(
    "--against", multiple=True, metavar="SUBJECT", help="Another one, to stand beside it; may be repeated."
)
POOL: Final = click.option("--pool", help="The pool under test; else the one that routes send most to.")
SEED: Final = click.option("--seed", type=click.IntRange(min=0), help="Instead of that of each scenario.")
OUT: Final = click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Keep the histories in this folder."
)
