"""``switchgear-agent completion``."""

from command_line.completion_script import completion_command
from engine.agent.cli import PROGRAM

command = completion_command(PROGRAM)
