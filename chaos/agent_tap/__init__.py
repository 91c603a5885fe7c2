"""A relay between agents and the control plane that can falsify reports: one process, one port per agent.

A falsified report must be valid: it gets a new sequence number, and contains nothing that contradicts its verdict.
"""
