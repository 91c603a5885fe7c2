"""The page of licences says what installed packages say of themselves."""

from email.message import Message
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

from deploy import licences


class Made(Distribution):
    """A package that is nothing but its metadata."""

    def __init__(self, *fields: tuple[str, str]) -> None:
        self._fields = fields

    @property
    def metadata(self) -> Message:  # type: ignore[override]  # the protocol of the standard library is this class
        message = Message()
        for name, value in self._fields:
            message[name] = value
        return message

    def read_text(self, filename: str) -> None:
        raise AssertionError(filename)

    def locate_file(self, path: object) -> Path:
        raise AssertionError(path)


LINES = licences.PAGE.read_text().partition("| package |")[2].splitlines()[2:]
NAMED = [line.split(" | ")[0].removeprefix("| ") for line in LINES]


@pytest.mark.parametrize("name", NAMED)
def test_the_page_says_of_each_package_what_it_says_itself(name: str) -> None:
    try:
        said = licences.licence(distribution(name))
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed here")
    assert f"| {name} | {said} |" in licences.PAGE.read_text()


def test_nothing_that_is_needed_to_run_is_left_out() -> None:
    assert not set(licences.required_packages()) - set(NAMED)


def test_what_stands_before_the_table_is_what_the_script_writes() -> None:
    assert licences.PAGE.read_text().startswith(licences.HEAD)


def test_every_package_says_some_licence() -> None:
    assert licences.UNKNOWN not in licences.PAGE.read_text()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("License-Expression", "MIT"), ("License", "other")], "MIT"),
        ([("License", "ISC"), ("Classifier", "License :: OSI Approved :: BSD License")], "ISC"),
        (
            [("License", "Permission is\nhereby granted"), ("Classifier", "License :: A :: MIT License")],
            "MIT License",
        ),
        ([("License", "x" * 61), ("Classifier", "License :: A :: MIT License")], "MIT License"),
        ([("Classifier", "Topic :: Licensing")], licences.UNKNOWN),
    ],
)
def test_an_expression_counts_before_a_name_before_a_classifier(fields: list[tuple[str, str]], said: str) -> None:
    assert licences.licence(Made(*fields)) == said
