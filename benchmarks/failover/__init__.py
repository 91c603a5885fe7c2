"""Failover: what a fault costs those who ask, with Switchgear and without it.

Real Envoys, the real control plane and real agents serve an open-loop load from simulated engines. A fault begins
and ends midway. Counted: answers, their latency, and wasted GPU time. Usage: ``python -m benchmarks failover
--help``; results: ``docs/failover.md``.
"""

from benchmarks.failover.cli import main

__all__ = ["main"]
