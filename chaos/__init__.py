"""Break things, then judge: rehearsed failure for the policies of a fleet, and sums about fleets.

A scenario (``scenario``, ``faults``) is made to go with policies (``fitting``), and played by real parts (``lab``)
or in simulated time (``simulator``). What was seen is a ``history``; ``measures``, ``checks`` and ``report`` know
nothing else. Around them stand what takes the place of GPUs and networks (``fake_engine``, ``gpu_double``,
``wire``, ``wiretap``, ``report_relay``), callers (``load``), the demonstration (``demo``), and ``planning``, which
starts nothing.
"""
