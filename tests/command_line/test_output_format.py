"""``-o``: its forms, and the errors of invalid ones."""

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner

from command_line.output_format import (
    DATA,
    LIST_FORMS,
    as_data,
    list_output_option,
    output_option,
    show_custom_columns,
)

DOCUMENT = {"items": [{"name": "a", "n": 1}, {"name": "b", "n": None}]}


@click.command()
@list_output_option()
def listed(output: Any, no_headers: bool) -> None:
    if output in DATA:
        click.echo(as_data(DOCUMENT, output), nl=False)
    elif output == "custom-columns":
        show_custom_columns(output, DOCUMENT["items"], headers=not no_headers)
    else:
        click.echo(output)


def shown(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(listed, arguments)
    return done.exit_code, done.output


def test_forms_of_a_list() -> None:
    assert shown() == (0, "table\n")
    for name in ("wide", "name"):
        assert shown("-o", name) == (0, f"{name}\n")
    assert json.loads(shown("-o", "json")[1]) == DOCUMENT
    assert shown("-ojsonpath={.items[*].name}") == (0, "a b\n")
    assert shown("-o", 'jsonpath={range .items[*]}{.name}{"\\n"}{end}') == (0, "a\nb\n")
    assert shown("-o", "jsonpath={.nothing}") == (0, "")
    assert shown("-o", "custom-columns=NAME:.name,N:n") == (0, "NAME  N\na     1\nb     <none>\n")
    assert shown("-o", "custom-columns=X:.x", "--no-headers") == (0, "<none>\n<none>\n")
    assert shown("-o", "custom-columns=A:.['name','n'],B:{.n}", "--no-headers") == (
        0,
        "a,1       1\nb,<none>  <none>\n",
    )


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ("yml", "unknown format 'yml'; did you mean yaml?"),
        ("xml", "Allowed: table|wide|name|json|yaml|jsonpath=|custom-columns="),
        ("json=x", "json takes no argument"),
        ("jsonpath", "jsonpath needs an argument: jsonpath=TEMPLATE"),
        ("jsonpath={.a", "the brace { is not closed"),
        ("custom-columns=", "custom-columns=HEADER:PATH,..."),
        ("custom-columns=NAME", "'NAME' is not HEADER:PATH"),
        ("custom-columns=NAME:.a[", "expected an index"),
    ],
)
def test_wrong_form_is_refused_with_a_hint(form: str, problem: str) -> None:
    code, text = shown("-o", form)
    assert code == 2
    assert problem in text


def test_prose_has_no_list_forms() -> None:
    @click.command()
    @output_option()
    def told(output: Any) -> None:
        click.echo(output)

    runner = CliRunner()
    assert runner.invoke(told).output == "text\n"
    for form in set(LIST_FORMS) - {"json", "yaml", "jsonpath"}:
        assert runner.invoke(told, ["-o", form]).exit_code == 2


def test_half_a_surrogate_pair_stays_an_escape() -> None:
    assert as_data({"x": "\ud83d"}, "json") == '{\n  "x": "\\ud83d"\n}\n'
