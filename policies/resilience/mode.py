"""Whether a policy, or one part of it, is carried out or only shadowed."""

from enum import StrEnum

from policies.document import documented_field


class Mode(StrEnum):
    """Whether decisions are carried out, or only made, recorded and reported."""

    ENFORCE = "enforce"
    SHADOW = "shadow"


def mode_of_part(what: str) -> Mode | None:
    """The field ``mode`` of one part of a policy, which is named by ``what``."""
    found: Mode | None = documented_field(
        None, f"Whether {what} is enforced or only shadowed; as the policy's own mode when absent."
    )
    return found
