"""Reasons why a change of policies is refused."""

from policies.findings import PolicyError


class RefusedChangeError(Exception):
    """The server refuses the change; the message has the reason and the fix."""


class SupersededError(RefusedChangeError):
    """The server refuses the change: another version is served than the one it was meant to replace."""


class UnknownVersionError(Exception):
    """There is no such version."""


class UnusableTextsError(Exception):
    """The server cannot serve the texts, for all of these errors."""

    def __init__(self, errors: tuple[PolicyError, ...]) -> None:
        super().__init__(f"{len(errors)} problem{'' if len(errors) == 1 else 's'} in these policies")
        self.errors = errors
