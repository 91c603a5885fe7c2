"""Lint: percentages that were most likely meant as fractions: 0.4 where 40 is meant.

Whoever comes from a tool that counts in fractions of one writes 0.4, and that is a percentage, too: a breaker then
opens at one failure in 250. Nobody's rule needs less than one in a hundred, so it is worth a word.
"""

from collections.abc import Iterator
from typing import Final

from policies.document import Spec
from policies.findings import Finding
from policies.lints.lint_context import LintContext, PoolRule


def _fractions(one: LintContext) -> Iterator[Finding]:
    for path, percent in _percentages("spec", one.spec):
        if 0 < percent < 1 and one.declares(path):
            yield one.policy(
                "SG170",
                path,
                f"{percent:g} is {percent:g} %, fewer than one in a hundred: percentages go from 0 to 100",
                f"write {100 * percent:g} if {100 * percent:g} % is meant",
            )


def _percentages(above: str, spec: Spec) -> Iterator[tuple[str, float]]:
    """Every field of a block, and of the blocks in it, that is a percentage: its path and what it says."""
    for name, field in type(spec).model_fields.items():
        path, value = f"{above}.{field.alias or name}", getattr(spec, name)
        if isinstance(value, Spec):
            yield from _percentages(path, value)
        elif isinstance(value, float) and name.endswith("percent"):
            yield path, value


PERCENTAGE_RULES: Final[tuple[PoolRule, ...]] = (_fractions,)
