"""Remarks of an import: fields not understood, fields with a changed meaning, fields that need no policy.

Every field is imported or listed; fields not handled are listed at the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from policies.origin import Origin


class RemarkKind(StrEnum):
    """What became of a field."""

    NOT_UNDERSTOOD = "not understood"
    CHANGED = "changed"
    LEFT = "left as is"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ImportRemark:
    """One thing to know about one field of what was read.

    ``document`` is ``Kind/name``, empty where a file is not made of such; ``path`` is as in the file, and
    ``value`` as it stands there.
    """

    origin: Origin
    sort: RemarkKind
    document: str
    path: str
    value: str
    why: str

    def __str__(self) -> str:
        """One line, as compilers write warnings."""
        what = " ".join(part for part in (self.document, self.path) if part)
        value = f" = {self.value}" if self.value else ""
        return ": ".join(part for part in (str(self.origin), self.sort, f"{what}{value}", self.why) if part)

    def record(self) -> Mapping[str, str | int]:
        """As JSON."""
        return {
            "file": self.origin.file,
            "line": self.origin.line,
            "column": self.origin.column,
            "sort": self.sort.value,
            "document": self.document,
            "path": self.path,
            "value": self.value,
            "why": self.why,
        }
