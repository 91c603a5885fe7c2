"""Failure rehearsal and capacity planning for a fleet's policies.

A scenario (``scenario``, ``faults``) is fitted to policies (``testbed``) and run with real processes (``lab``) or
in simulated time (``simulator``). The result is a ``history``, the only input of ``measures``, ``checks`` and
``report``. Stand-ins replace GPUs and networks (``fake_engine``, ``gpu_double``, ``netem``, ``xds_tap``,
``agent_tap``). ``load`` sends requests, ``demo`` is the demonstration, and ``planning`` computes without running
anything.
"""
