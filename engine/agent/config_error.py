"""Configuration error of the agent."""


class AgentConfigError(Exception):
    """Invalid settings; the message names each location and a fix."""
