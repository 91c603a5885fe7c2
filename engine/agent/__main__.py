"""``python -m engine.agent``: same as ``switchgear-agent``."""

from engine.agent.cli import entry

if __name__ == "__main__":
    entry()
