"""Lint: warnings that a field declares about its own value, percentages that look like fractions, placeholders.

Tools that count in fractions write 0.4 for 40 %. Read as a percentage, 0.4 opens a breaker at one failure in 250.
No sensible rule needs less than 1 %.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from policies.document import FieldDeclaration, Spec, declaration
from policies.field_checks import ValueLint
from policies.findings import Finding
from policies.lints.lint_context import LintContext, PoolRule

_PLACEHOLDER: Final = re.compile(
    r"(?:YOUR[-_ ]?)?MODEL(?:[-_ ]?(?:NAME|ID))?|(?i:change[-_ ]?me)|TODO|XXX+|<.*>|\$\{?\w+\}?|.*\{\{.*"
)


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
                f"{value:g} means {value:g} %, less than one in a hundred; percentages go from 0 to 100",
                f"write {100 * value:g} for {100 * value:g} %",
            )


def _values(above: str, block: Spec) -> Iterator[tuple[str, Any, FieldDeclaration]]:
    """Every field of a block and its nested blocks: path, value and declaration."""
    for name, field in type(block).model_fields.items():
        path, value = f"{above}.{field.alias or name}", getattr(block, name)
        if isinstance(value, Spec):
            yield from _values(path, value)
        else:
            yield path, value, declaration(field)


def _placeholder(one: LintContext) -> Iterator[Finding]:
    if _PLACEHOLDER.fullmatch(one.pool.model):
        yield one.engines(
            "SG171",
            "spec.model",
            f"model {one.pool.model} is a placeholder: the engines do not serve it",
            "write the model name that the engines list at /v1/models",
        )


VALUE_RULES: Final[tuple[PoolRule, ...]] = (_declared_advice, _fractions, _placeholder)
