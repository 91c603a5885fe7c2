"""Whether a policy, or one part of it, is carried out or only shadowed."""

from enum import StrEnum
from typing import Final

from policies.document import documented_field
from policies.fidelity import approximated
from policies.field_targets import FieldTargets


class Mode(StrEnum):
    """Whether decisions are carried out, or only made, recorded and reported."""

    ENFORCE = "enforce"
    SHADOW = "shadow"


EITHER_MODE: Final = approximated(
    "what Envoy does by itself is exported in either mode; what a control plane decides is not there"
)
"""What exports make of a mode whose part runs in Envoy as well."""


def mode_of_part(what: str, *, targets: FieldTargets) -> Mode | None:
    """The field ``mode`` of one part of a policy, which is named by ``what``; ``targets`` are what carries it."""
    found: Mode | None = documented_field(
        None,
        f"Whether {what} is enforced or only shadowed; as the policy's own mode when absent.",
        targets=targets,
    )
    return found
