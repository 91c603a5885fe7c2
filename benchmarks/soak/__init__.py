"""A small site kept under load while things go wrong at random, and looked at all the while.

``plan`` says from a seed what goes wrong and when, ``site`` stands it up and does it, ``invariants`` and
``growth`` judge what was seen; ``cli`` is ``python -m benchmarks soak``.
"""

from benchmarks.soak.cli import main

__all__ = ("main",)
