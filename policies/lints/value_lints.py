"""Lint: advice that a field declares about its own value, and percentages that most likely mean fractions.

An author who comes from a tool that counts in fractions of one writes 0.4 where 40 is meant. That is a percentage,
too: a breaker then opens at one failure in 250. No sensible rule needs less than one in a hundred.
"""

from collections.abc import Iterator
from typing import Any, Final

from policies.document import FieldDeclaration, Spec, declaration
from policies.field_checks import ValueLint
from policies.findings import Finding
from policies.lints.lint_context import LintContext, PoolRule


def _declared_advice(one: LintContext) -> Iterator[Finding]:
    for block, report in ((one.pool, one.engines), (one.spec, one.policy)):
        for path, value, declared in _values("spec", block):
            for check in declared.checks:
                if isinstance(check, ValueLint) and check.applies(value):
                    yield report(check.code, path, check.message, check.fix)


def _fractions(one: LintContext) -> Iterator[Finding]:
    for path, value, declared in _values("spec", one.spec):
        if declared.unit == "%" and isinstance(value, float) and 0 < value < 1 and one.declares(path):
            yield one.policy(
                "SG170",
                path,
                f"{value:g} is {value:g} %, fewer than one in a hundred: percentages go from 0 to 100",
                f"write {100 * value:g} if {100 * value:g} % is meant",
            )


def _values(above: str, block: Spec) -> Iterator[tuple[str, Any, FieldDeclaration]]:
    """Every field of a block, and of the blocks in it: its path, its value and what it declares."""
    for name, field in type(block).model_fields.items():
        path, value = f"{above}.{field.alias or name}", getattr(block, name)
        if isinstance(value, Spec):
            yield from _values(path, value)
        else:
            yield path, value, declaration(field)


VALUE_RULES: Final[tuple[PoolRule, ...]] = (_declared_advice, _fractions)
