"""``switchgear-chaos completion``."""

from chaos.cli import PROGRAM
from command_line.completion_script import completion_command

command = completion_command(PROGRAM, "Also completes the names of scenarios and faults.")
