"""What is published about failing fleets, beside what Switchgear's models and its live runs measure.

``python -m benchmarks claims``. The claims are of A. Apartsin, Y. Aperstein, "Building Scalable AI", section 23.7.
"""

from benchmarks.claims.cli import main

__all__ = ["main"]
