"""The error of settings that cannot work; the settings and the reader of their file both raise it."""


class AgentConfigError(Exception):
    """Settings that cannot work; the message names each place and what would work there."""
