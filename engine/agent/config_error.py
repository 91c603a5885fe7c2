"""What whoever starts the agent has to mend."""


class ConfigError(Exception):
    """Settings that cannot work; the message names each place and what would work there."""
