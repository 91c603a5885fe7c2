"""Every code is documented, is in use, and is drawn by its own example."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import policies
from policies.codes import CODES
from policies.codes.code import Code
from policies.codes.error_codes import ERRORS
from policies.codes.lint_codes import ADVICE

SOURCES = [path for path in Path(policies.__file__).parent.rglob("*.py") if path.parent.name != "codes"]

# Drawn in test_policy_files, test_load and test_discovery, about files and clusters; in test_consequence_findings,
# about policies that were played; and in test_conversion and test_api_versions, about the version of a file.
SITUATIONS = {
    "SG001",
    "SG002",
    "SG003",
    "SG004",
    "SG005",
    "SG006",
    "SG007",
    "SG010",
    "SG029",
    "SG100",
    "SG043",
    "SG150",
    "SG151",
    "SG180",
    "SG181",
    "SG182",
    "SG183",
    "SG199",
}


@pytest.mark.parametrize("code", [one for one in CODES.values() if one.example], ids=lambda one: one.code)
def test_an_example_draws_its_code(code: Code, codes_of_example: Callable[[str], set[str]]) -> None:
    assert code.code in codes_of_example(code.example)


def test_codes_are_unique() -> None:
    assert len(CODES) == len(ERRORS) + len(ADVICE)


def test_codes_of_the_source_and_codes_of_the_table_are_the_same() -> None:
    used = {code for path in SOURCES for code in re.findall(r'"(SG\d{3})"', path.read_text())}
    assert used == set(CODES)


def test_every_code_has_an_example_or_a_situation_that_a_test_makes() -> None:
    assert {one.code for one in CODES.values() if not one.example} == SITUATIONS
    assert all(bool(one.example) != bool(one.situation) for one in CODES.values())


def test_situations_are_named_in_a_test() -> None:
    here = Path(__file__).parent
    text = "".join(
        (here / f"test_{name}.py").read_text()
        for name in ("policy_files", "load", "discovery", "consequence_findings", "conversion", "api_versions")
    )
    assert [code for code in SITUATIONS if f'"{code}"' not in text] == []
