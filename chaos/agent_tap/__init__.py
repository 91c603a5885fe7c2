"""A relay between agents and the control plane that can make reports lie: one process, one port for each agent.

It understands what it passes on, for a lie has to be a report that the control plane believes: numbered like a new
one, and with nothing left in it that speaks against its verdict.
"""
