"""The reference of all three commands as Markdown, made from the commands themselves.

``docs/cli.md`` holds what ``commands_markdown`` returns; a test compares them. It stands up here because it has to
know every command there is, those that packages add to ``switchgear`` too.
"""

import argparse
from collections.abc import Iterator

import click

from chaos.cli import group as chaos
from engine.agent.cli import parser as agent_parser
from policies.reference import row
from xds_server.cli import group as switchgear

_HEAD = """\
# Commands

Made from the commands by `python -m chaos.command_reference`; a test keeps it in step. Answers go to stdout,
remarks to stderr. Exit codes: 0 yes, 1 the answer is no, 2 asked wrongly; a command that has more of them says so.
"""


def commands_markdown() -> str:
    """All of it."""
    parts = (
        *_command(click.Context(switchgear, info_name="switchgear"), level=2),
        *_agent(),
        *_command(click.Context(chaos, info_name="switchgear-chaos"), level=2),
    )
    return _HEAD + "\n" + "\n".join(parts) + "\n"


def _command(context: click.Context, *, level: int) -> Iterator[str]:
    command = context.command
    yield f"{'#' * min(level, 4)} {context.command_path}\n"
    yield f"{_prose(command.help)}\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _command(click.Context(found, info_name=name, parent=context), level=level + 1)
        return
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```\n{context.command_path} {usage}\n```\n"
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        yield row("option", "what it is")
        yield "|---|---|"
        for one in options:
            yield row(*_option(one, context))
        yield ""


def _option(one: click.Option, context: click.Context) -> tuple[str, str]:
    """The flags, and all that ``--help`` says of them."""
    names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
    said = one.get_help_record(context)
    metavar = "" if one.is_flag else f" {one.make_metavar(context)}"
    return f"{names}{metavar}", _prose(said[1] if said else one.help)


def _prose(text: str | None) -> str:
    """Help as Markdown: what stands between bars or angles is meant as it stands, and so are its examples."""
    lines = (text or "").replace("\b\n", "").strip().splitlines()
    return "\n".join(line.strip() for line in lines).replace("<", "\\<").replace("|", "\\|")


def _agent() -> Iterator[str]:
    parser = agent_parser()
    yield f"## {parser.prog}\n"
    yield f"{parser.description}\n"
    for action in parser._actions:  # argparse has no other way to look into a parser
        if not isinstance(action, argparse._SubParsersAction):
            continue
        summaries = {one.dest: one.help for one in action._choices_actions}
        for name, command in action.choices.items():
            yield f"### {parser.prog} {name}\n"
            yield f"{(summaries[name] or '').capitalize()}.\n"
            yield row("option", "what it is")
            yield "|---|---|"
            for option in command._actions:
                flags = ", ".join(f"`{flag}`" for flag in option.option_strings)
                if "-h" not in option.option_strings:
                    says = (option.help or "") % {"default": option.default}
                    yield row(f"{flags} {option.metavar or ''}".rstrip(), _prose(says))
            yield ""


if __name__ == "__main__":
    print(commands_markdown(), end="")  # noqa: T201 - the text is the answer
