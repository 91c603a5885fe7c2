"""Durations, counts and lists as text."""

from collections.abc import Iterable


def duration_text(seconds: float) -> str:
    """``0.3 s``, ``12 s``, ``5m``, ``3h``, ``2d``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f}m"
    return f"{seconds / 3600:.0f}h" if seconds < 172_800 else f"{seconds / 86_400:.0f}d"


def age_text(seconds: float) -> str:
    """``0.3s``, ``12s``, ``5m``, ``3h``."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 120:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.0f}h"


def names_text(names: Iterable[str], most: int = 5, *, of: int = 0) -> str:
    """``a, b and 3 more``; ``of`` is the total, if not all are listed."""
    listed = list(names)
    left = max(of, len(listed)) - len(listed[:most])
    return ", ".join(listed[:most]) + (f" and {left} more" if left else "")


def count_text(number: int, noun: str) -> str:
    """``1 proxy``, ``2 proxies``, ``3 errors``."""
    plural = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
