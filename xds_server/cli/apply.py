"""``switchgear apply``: apply policies to a running server, which validates them like its own files."""

import getpass
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from command_line.interrupts import INTERRUPTED
from policies.findings import PolicyErrors, Problem
from policies.model import PolicySet
from policies.policy_files import decode_text
from policies.quantity import parse_duration
from xds_server.admin_api.endpoints import APPLY, CANARY, END_CANARY
from xds_server.admin_api.version_types import CanaryStatus
from xds_server.cli.admin_client import AdminAnswer, AdminApiError, NoAnswerError, fetch
from xds_server.cli.change_outcome import REFUSED, ROLLED_BACK, SUPERSEDED, OutcomeReporter, form_option
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import as_text, from_errors, from_findings, printable
from xds_server.cli.policies_option import PolicyTexts, policies_option, read_policies
from xds_server.cli.version_number import ExpectedVersion
from xds_server.rollout.history.policy_version import MAX_TEXT_BYTES

by_option = click.option(
    "--by", default="", metavar="NAME", help="Author of the change; default: the user of this shell."
)
reason_option = click.option("--reason", default="", help="Reason, stored with the version.")
expect_option = click.option(
    "--expect",
    type=ExpectedVersion(),
    default="",
    metavar="VERSION",
    help="Refuse unless this version is current: its number, or at least 12 characters of its digest.",
)
POLL_EACH_S: Final = 0.5
LOST_S: Final = 30.0
"""How long to wait for a server that does not answer during a canary: it may be busy."""
PROGRESS_EACH_S: Final = 60.0
"""Interval of canary progress while only figures change."""
MAX_PERCENT: Final = 100.0
_FIGURE: Final = re.compile(r"\d[\d.e+-]*")


@click.command(name="apply")
@policies_option()
@click.option("--dry-run", is_flag=True, help="Show the changes and let the server validate them; apply nothing.")
@click.option(
    "--canary",
    metavar="PERCENT",
    help="Apply to this share of proxies first, e.g. 10%; at least one proxy.",
)
@click.option(
    "--for", "length", default="60s", show_default=True, metavar="DURATION", help="Duration of the canary."
)
@click.option(
    "--slo",
    metavar="PERCENT",
    help="Roll back unless at least this share of canary requests succeeds, e.g. 99.5%.",
)
@click.option("--yes-if-unknown", is_flag=True, help="Continue if there was too little traffic for a result.")
@click.option("--end-canary", is_flag=True, help="Roll back the running canary; excludes -f.")
@expect_option
@connection_options
@by_option
@reason_option
@form_option
def command(*, filename: tuple[Path, ...], admin: str, output: str, end_canary: bool, **named: Any) -> int:
    """Apply policies to the running server; they replace all current policies.

    The server validates them like its own files and stores them as a version (`switchgear history`). They stay
    until the server's policy files change, with --state-dir also after a restart: correct the files too. A server
    that reads policies from Kubernetes refuses: change the objects there.

    With --expect the server refuses if another version is current, so that no concurrent change is lost.
    `switchgear diff` and `switchgear history` name the version.

    With --canary a share of proxies gets them first. The server rolls back if a canary proxy refuses a resource,
    if canary proxies fail, shed or slow down more than the others, or if they miss --slo. Otherwise all proxies
    get them after --for. The server decides even if this command ends; Ctrl-C rolls back.

    -o json and -o yaml print one document at the end and progress to stderr; none with exit code 2 or 130.

    Exit code: 0 applied (with --dry-run: valid), 1 refused or rolled back, 2 usage error or no server.
    """
    reporter, change = OutcomeReporter(admin=admin, form=output), _Change(**named)
    if end_canary:
        if filename or change.expect:
            excess = "-f" if filename else "--expect"
            raise click.UsageError(f"--end-canary applies nothing: remove {excess}")
        return _end(reporter, change.author)
    if not filename:
        raise click.UsageError("no policies: set -f FILE|DIR|-")
    if change.canary is None:
        _refuse_canary_options()
    files = read_policies(filename)
    try:
        policies = files.load()
    except PolicyErrors as errors:
        diagnostics = from_errors(errors)
        click.echo(as_text(diagnostics), err=True)
        return reporter.end(
            REFUSED,
            reason="the policies have problems",
            errors=[one.record() for one in diagnostics],
        )
    texts = _texts(files)
    if reporter.data:
        reporter = replace(reporter, warnings=_warnings(policies))
    if change.dry_run:
        reporter = _compared(reporter, policies)
    try:
        answer = fetch(admin, APPLY, body={"texts": texts, **change.body()}).value
    except AdminApiError as refusal:
        return reporter.report_refusal(refusal)
    except KeyboardInterrupt:
        click.echo("interrupted: `switchgear status` shows whether the server has applied it", err=True)
        return INTERRUPTED
    if answer.state == "canary":
        return _watched(reporter, change.author, answer.digest)
    return reporter.report_answer(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """The options that describe the change; ``length`` is the duration of the canary."""

    dry_run: bool
    canary: str | None
    length: str
    slo: str | None
    yes_if_unknown: bool
    expect: str
    by: str
    reason: str

    @property
    def author(self) -> str:
        """Author of the change: ``--by``, else the user of this shell."""
        return self.by or user_name()

    def body(self) -> dict[str, Any]:
        """The request without its texts; ``click.BadParameter`` for an invalid value."""
        return {
            "by": self.author,
            "reason": self.reason,
            "dry_run": self.dry_run,
            "canary_percent": 0.0 if self.canary is None else _share(self.canary, "--canary"),
            "for_s": _seconds(self.length),
            "yes_if_unknown": self.yes_if_unknown,
            # Older servers refuse unknown fields.
            **({} if self.slo is None else {"slo_percent": _objective(self.slo)}),
            **({"expect": self.expect} if self.expect else {}),
        }


def _warnings(policies: PolicySet) -> list[Mapping[str, str | int]]:
    """The warnings of ``switchgear validate``."""
    from policies.lints.lint import lint  # noqa: PLC0415 - only data has them

    return [one.record() for one in from_findings(lint(policies))]


def _compared(reporter: OutcomeReporter, policies: PolicySet) -> OutcomeReporter:
    """Print the changes of a dry run, or add them to the document."""
    # Loads Envoy's message classes, 0.5 s of CPU that only a dry run needs.
    from xds_server.cli.diff import diff_of_policies, diff_record, print_diff, served_policies  # noqa: PLC0415

    old, views, arrivals, against = served_policies(reporter.admin)
    found = diff_of_policies(old, policies, views, arrivals)
    if reporter.data:
        return replace(reporter, diff=diff_record(found, against))
    print_diff(found, "text", everything=False, against=against)
    return reporter


def _texts(files: PolicyTexts) -> Mapping[str, str]:
    """The files by name; ``click.UsageError`` for too many bytes."""
    texts = {}
    for file, content in files.contents.items():
        text = content if isinstance(content, Problem) else decode_text(content)
        if isinstance(text, Problem):  # not after a successful load
            raise click.ClickException(f"{file}: {text.message}")
        texts[str(file)] = text
    if sum(map(len, texts.values())) > MAX_TEXT_BYTES:
        raise click.UsageError(f"the policies exceed {MAX_TEXT_BYTES // 1024**2} MiB, the limit of a server")
    return texts


def _share(text: str, option: str) -> float:
    try:
        share = float(text.removesuffix("%"))
    except ValueError:
        share = 0.0
    if not 0 < share <= MAX_PERCENT:  # neither is NaN
        raise click.BadParameter(f"{text!r} is not a percentage above 0% and up to 100%", param_hint=option)
    return share


def _objective(text: str) -> float:
    percent = _share(text, "--slo")
    if percent <= 1:
        raise click.BadParameter(f"{text!r} is at most 1%: write 99.5% for 0.995", param_hint="--slo")
    return percent


def _refuse_canary_options() -> None:
    """``click.UsageError`` for options of a canary without ``--canary``."""
    context = click.get_current_context()
    for name, option in (("slo", "--slo"), ("length", "--for"), ("yes_if_unknown", "--yes-if-unknown")):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} requires --canary")


def _seconds(length: str) -> float:
    try:
        return parse_duration(length)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--for") from error


def _watched(reporter: OutcomeReporter, by: str, digest: str) -> int:
    """Print the progress of this canary until it ends."""
    shown: tuple[Any, ...] = ()
    shown_at_s = 0.0
    try:
        while True:
            answer = _looked(reporter.admin)
            now = answer.value
            if now.state != "running" or now.digest != digest:
                break
            result = f"{now.word}: {'; '.join(now.reasons)}"
            # Figures change each second; the result without them does not.
            news = (now.connected, len(now.proxies), _FIGURE.sub("", result))
            if news != shown or now.age_s - shown_at_s >= PROGRESS_EACH_S:
                shown, shown_at_s = news, now.age_s
                proxies = f"{now.connected} of {len(now.proxies)} canary proxies"
                reporter.print_text(printable(f"{now.age_s:.0f} s: {proxies}, {now.requests} requests; {result}"))
            time.sleep(POLL_EACH_S)
    except KeyboardInterrupt:
        click.echo("rolling back", err=True)
        return _end(reporter, by)
    return _ended(reporter, answer, digest)


def _looked(admin: str) -> AdminAnswer[CanaryStatus]:
    """The state of the canary; retries for ``LOST_S`` while the server does not answer."""
    lost_at_s = None
    while True:
        try:
            return fetch(admin, CANARY)
        except (NoAnswerError, AdminApiError) as error:
            now_s = time.monotonic()
            if lost_at_s is None:
                lost_at_s = now_s
                click.echo(f"{printable(error.format_message())}; retrying", err=True)
            if now_s - lost_at_s >= LOST_S:
                click.echo("the server decides on its own; `switchgear history` shows the outcome", err=True)
                raise
        time.sleep(POLL_EACH_S)


def _ended(reporter: OutcomeReporter, answer: AdminAnswer[CanaryStatus], digest: str = "") -> int:
    now = answer.value
    reason = "; ".join(now.reasons)
    reasons = printable(reason.replace("\n", " "))
    if now.state == "none":
        reason = "the server restarted and serves its previous version to all proxies"
        click.echo(f"rolled back: {reason}", err=True)
        return reporter.end(ROLLED_BACK, reason=reason, digest=digest)
    if digest and now.digest != digest:
        reason = "the canary has ended and another followed; `switchgear history` shows the current version"
        click.echo(reason, err=True)
        return reporter.end(SUPERSEDED, reason=reason, digest=digest)
    if now.state == "served":
        reporter.print_text(f"Now serving version {now.version} to all proxies ({reasons}).")
        return reporter.end(
            "served", reason=reason, digest=now.digest, version=now.version, canary=answer.document
        )
    click.echo(f"rolled back: {reasons}", err=True)
    return reporter.end(ROLLED_BACK, reason=reason, digest=now.digest, canary=answer.document)


def _end(reporter: OutcomeReporter, by: str) -> int:
    try:
        return _ended(reporter, fetch(reporter.admin, END_CANARY, query=[("by", by)]))
    except AdminApiError as refusal:
        return reporter.report_refusal(refusal)
    except (NoAnswerError, KeyboardInterrupt) as error:
        click.echo(
            "the canary may still run: see `switchgear status`; roll back with `switchgear apply --end-canary`",
            err=True,
        )
        if isinstance(error, KeyboardInterrupt):
            return INTERRUPTED
        raise


def user_name() -> str:
    """The user of this shell; empty where the system has no name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
