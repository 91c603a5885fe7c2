"""Rewrite the apiVersion of documents in a text, and nothing else: comments, layout and line ends stay.

All versions have the same fields and meanings, so no other line changes. The result is parsed again and
compared, because a text may spell a value in ways that a replacement cannot see.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from policies.document import API_VERSIONS, WrittenVersion
from policies.findings import Problem
from policies.origin import Spot, column_of, line_of, nearest
from policies.policy_files import decode_text, encode_like
from policies.yaml_text import RawDocument, Value, parse

# What YAML counts as the end of a line.
_LINE_ENDS: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


def convert_content(content: bytes, to: WrittenVersion) -> bytes | tuple[Problem, ...]:
    """The content of a file with all its documents in version ``to``, or why it cannot be rewritten.

    Documents of other tools stay as they are.
    """
    text = decode_text(content)
    if isinstance(text, Problem):
        return (text,)
    parsed = parse(text)
    if parsed.problems:
        return parsed.problems
    found = [one for one in parsed.documents if _differs(one.value, to)]
    if not found:
        return content
    rewritten = _rewritten(text, found, to)
    if _values(rewritten) != [_in_version(one.value, to) for one in parsed.documents]:
        return tuple(_indirect(one) for one in found)
    return encode_like(content, rewritten)


def _differs(value: Value, to: WrittenVersion) -> bool:
    return isinstance(value, dict) and value.get("apiVersion") in API_VERSIONS and value["apiVersion"] != to


def _in_version(value: Value, to: WrittenVersion) -> Value:
    return {**value, "apiVersion": to} if isinstance(value, dict) and _differs(value, to) else value


def _values(text: str) -> list[Value]:
    parsed = parse(text)
    return [] if parsed.problems else [one.value for one in parsed.documents]


def _rewritten(text: str, documents: Sequence[RawDocument], to: WrittenVersion) -> str:
    begins = [0, *(end.end() for end in _LINE_ENDS.finditer(text))]
    pieces, done = [], 0
    for old, at in _versions(documents):
        start = text.find(old, begins[line_of(at) - 1] + column_of(at) - 1)
        if start < done:
            continue  # found nowhere, or an anchor of two documents: the comparison tells
        pieces += [text[done:start], to]
        done = start + len(old)
    return "".join((*pieces, text[done:]))


def _versions(documents: Sequence[RawDocument]) -> Iterator[tuple[str, Spot]]:
    """Each version as it is written, and where its value begins."""
    for one in documents:
        assert isinstance(one.value, dict)  # noqa: S101 - chosen so by convert_content
        yield str(one.value["apiVersion"]), _place(one)


def _place(one: RawDocument) -> Spot:
    return nearest(one.places, ("apiVersion",))


def _indirect(one: RawDocument) -> Problem:
    return Problem(
        code="SG029",
        at=_place(one),
        path="apiVersion",
        message="cannot rewrite this apiVersion: it is an alias, is merged, or has escapes",
        hint="write it out: `apiVersion: ` and the version",
    )
