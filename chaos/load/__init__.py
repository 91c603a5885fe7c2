"""Who asks: callers that send on a schedule of their own, whatever becomes of what they sent before.

``arrivals`` draws the schedule that a scenario describes, ``sender`` sends it and says what became of each, and
``callers`` is both while an experiment runs, with what faults make callers do differently. ``open_loop`` is the
plain kind, one steady rate, for the demonstration, the benchmarks and ``python -m chaos.load``.
"""
