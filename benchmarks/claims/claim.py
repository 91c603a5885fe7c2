"""One published claim, and what came of it here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Short texts for a table: ``published``, ``simulated``, and ``live``, empty where nothing was run.

    ``holds`` says whether the model bears the claim out; ``plainly`` what to make of it, and what differs.
    """

    name: str
    published: str
    simulated: str
    live: str
    holds: bool
    plainly: str
