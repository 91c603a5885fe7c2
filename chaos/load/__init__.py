"""Open-loop load: callers send on a schedule, whether or not earlier requests finished.

``arrival_schedule`` draws a scenario's schedule, ``request_sender`` sends it and reports outcomes, and
``running_load`` combines both with the load changes of faults. ``open_loop`` sends one steady rate, for the demo,
the benchmarks and ``python -m chaos.load``.
"""
