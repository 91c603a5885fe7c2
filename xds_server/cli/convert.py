"""``switchgear convert``: rewrite policy files to another apiVersion, without a cluster or a server."""

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from policies.conversion import convert_content
from policies.document import API_VERSIONS, NEWEST_API_VERSION, WrittenVersion
from policies.findings import PolicyError, PolicyErrors, Problem
from policies.policy_files import decode_text
from xds_server.cli.diagnostics import as_text, from_errors, printable
from xds_server.cli.policies_option import STDIN, policies_option, read_policies
from xds_server.model.text import count_text
from xds_server.state.atomic_file import write_atomically

_MARKER: Final = "---\n"


@click.command(name="convert")
@policies_option("File or folder to rewrite, - for stdin; repeatable.", required=True)
@click.option("--in-place", is_flag=True, help="Rewrite the files instead of printing them.")
@click.option(
    "--output-version",
    type=click.Choice(API_VERSIONS),
    default=NEWEST_API_VERSION,
    show_default=True,
    help="The apiVersion to write.",
)
def command(filename: tuple[Path, ...], in_place: bool, output_version: WrittenVersion) -> int:
    """Rewrite policy files to another apiVersion; keep comments and layout.

    Prints all files as one stream, or with --in-place rewrites those that differ. Only apiVersion changes; all
    versions mean the same. Rewrites access rules and scenarios too, and no documents of other tools. If one file
    cannot be rewritten, none is.

    Exit code: 0 converted, or nothing to do; 1 problems found; 2 usage error.
    """
    if in_place and STDIN in filename:
        raise click.UsageError("--in-place rewrites files; read stdin without it")
    texts = read_policies(filename)
    errors = [problem.error(file) for file, problem in texts.found.problems]
    before: dict[Path, bytes] = {}
    after: dict[Path, bytes] = {}
    for path, content in texts.contents.items():
        converted = (content,) if isinstance(content, Problem) else convert_content(content, output_version)
        if isinstance(content, bytes) and isinstance(converted, bytes):
            before[path], after[path] = content, converted
        elif isinstance(converted, tuple):
            errors += [problem.error(str(path)) for problem in converted]
    if errors:
        return _refused(errors, filename)
    if in_place:
        _write({path: content for path, content in after.items() if content != before[path]})
    else:
        click.echo(_stream(after), nl=False)
    return 0


def _refused(errors: list[PolicyError], filename: tuple[Path, ...]) -> int:
    click.echo(as_text(from_errors(PolicyErrors.of(errors))), err=True)
    given = {str(path) for path in filename}
    return 2 if all(one.code == "SG001" and one.origin.file in given for one in errors) else 1


def _write(changed: Mapping[Path, bytes]) -> None:
    """Rewrite the files with their permissions, through links; one line for each."""
    for path, content in changed.items():
        try:
            target = path.resolve(strict=True)
            write_atomically(target, content, stat.S_IMODE(target.stat().st_mode))
        except OSError as error:
            raise click.ClickException(f"{path}: cannot write: {error.strerror or error}") from error
        click.echo(f"{printable(str(path))} converted")
    click.echo(f"{count_text(len(changed), 'file')} converted", err=True)


def _stream(contents: Mapping[Path, bytes]) -> str:
    """All files as one stream of documents."""
    stream = ""
    for content in contents.values():
        text = decode_text(content)
        assert isinstance(text, str)  # noqa: S101 - it was decoded to be converted
        if stream and not stream.endswith("\n"):
            stream += "\n"
        if stream and not text.startswith("---"):
            stream += _MARKER
        stream += text
    return stream
