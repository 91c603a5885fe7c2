"""Failover: what a fault costs those who ask, with Switchgear and without it.

Real Envoys, the real control plane and real agents stand between simulated engines and an open-loop load. In the
middle of it something breaks, is mended, and everything is counted: who got an answer, when, and what GPU time was
spent for nothing. ``python -m benchmarks failover --help`` says how; ``docs/failover.md`` has the results.
"""

from benchmarks.failover.cli import main

__all__ = ["main"]
