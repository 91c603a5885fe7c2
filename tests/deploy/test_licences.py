"""docs/licences.md matches the metadata of installed packages."""

from email.message import Message
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

from deploy import licences


class Made(Distribution):
    """A package with metadata only."""

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
def test_page_matches_package_metadata(name: str) -> None:
    try:
        stated = licences.licence(distribution(name))
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed here")
    assert f"| {name} | {stated} |" in licences.PAGE.read_text()


def test_page_lists_every_runtime_dependency() -> None:
    assert not set(licences.required_packages()) - set(NAMED)


def test_page_starts_with_the_generated_head() -> None:
    assert licences.PAGE.read_text().startswith(licences.HEAD)


def test_every_package_has_a_known_licence() -> None:
    assert licences.UNKNOWN not in licences.PAGE.read_text()


@pytest.mark.parametrize(
    ("fields", "expected"),
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
def test_expression_precedes_name_precedes_classifier(fields: list[tuple[str, str]], expected: str) -> None:
    assert licences.licence(Made(*fields)) == expected
