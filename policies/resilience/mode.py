"""Whether a policy, or one part of it, is enforced or shadowed."""

from enum import StrEnum
from typing import Final

from policies.document import documented_field
from policies.fidelity import approximated
from policies.field_targets import FieldTargets


class Mode(StrEnum):
    """Whether decisions are applied, or only recorded and reported."""

    ENFORCE = "enforce"
    SHADOW = "shadow"


EITHER_MODE: Final = approximated(
    "Envoy's own mechanisms are exported in either mode; decisions of a control plane are not"
)
"""Export of a mode whose part runs in Envoy too."""


def mode_of_part(what: str, *, targets: FieldTargets) -> Mode | None:
    """The field ``mode`` of the part of a policy named ``what``; ``targets`` carry it."""
    found: Mode | None = documented_field(
        None,
        f"enforce or shadow {what}; default: the policy's mode.",
        targets=targets,
    )
    return found
