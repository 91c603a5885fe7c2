"""``switchgear apply``: other policies for a running server, which judges them as it does its files."""

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
from policies.load import load
from policies.model import PolicySet
from policies.policy_files import decode_text, read, search
from policies.quantity import parse_duration
from xds_server.admin_api.endpoints import APPLY, CANARY, END_CANARY
from xds_server.admin_api.version_types import CanaryStatus
from xds_server.cli.admin_client import AdminAnswer, AdminApiError, NoAnswerError, fetch
from xds_server.cli.change_outcome import REFUSED, ROLLED_BACK, SUPERSEDED, OutcomeReporter, form_option
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import as_text, from_errors, from_findings, printable
from xds_server.cli.version_number import ExpectedVersion
from xds_server.rollout.history.policy_version import MAX_TEXT_BYTES

by_option = click.option(
    "--by", default="", metavar="NAME", help="Who does it; the user of this shell when absent."
)
reason_option = click.option("--reason", default="", help="Why; kept with the version.")
expect_option = click.option(
    "--expect",
    type=ExpectedVersion(),
    default="",
    metavar="VERSION",
    help="Only while this version is what is served: its number, or 12 characters or more of its digest.",
)
POLL_EACH_S: Final = 0.5
LOST_S: Final = 30.0
"""A canary is waited for although nobody answers for so long: a server that is busy is no reason to leave."""
PROGRESS_EACH_S: Final = 60.0
"""A canary of which there is no news but figures is told of so seldom: a log is for what becomes different."""
MAX_PERCENT: Final = 100.0
_FIGURE: Final = re.compile(r"\d[\d.e+-]*")


@click.command(name="apply")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--dry-run", is_flag=True, help="Show what it would change, and have the server judge it; change nothing."
)
@click.option(
    "--canary",
    metavar="PERCENT",
    help="Try them on this share of the proxies first, such as 10%; one at least.",
)
@click.option("--for", "length", default="60s", show_default=True, metavar="DURATION", help="How long to try.")
@click.option(
    "--slo",
    metavar="PERCENT",
    help="So many requests to those proxies have to be answered well, such as 99.5%, however the others do.",
)
@click.option("--yes-if-unknown", is_flag=True, help="Go on also where there was too little traffic to tell.")
@click.option("--end-canary", is_flag=True, help="Roll back the canary that runs; takes no PATHS.")
@expect_option
@connection_options
@by_option
@reason_option
@form_option
def command(*, paths: tuple[Path, ...], admin: str, output: str, end_canary: bool, **named: Any) -> int:
    """Have the policies in the files and folders PATHS served, in the place of all that is served now.

    The server judges them like its own files, and they become a version (`switchgear history`). They stand until
    the policy files of the server change, also over a restart with --state-dir: correct the files, too. A server
    that reads policies from Kubernetes refuses: change them there.

    With --expect they are refused once another version is served than the one that they were compared with, which
    `switchgear diff` and `switchgear history` name: so nobody undoes unseen what somebody else just had served.

    With --canary a share of the proxies has them first. The server goes back by itself when one of those refuses
    something, or fails or sheds more, or is slower, than the others in the same time, or falls short of --slo.
    Else, after --for, all have them. The server decides, whether or not this command is still there; Ctrl-C has it
    go back.

    With -o json or yaml what became of it is one document at the end, and what is told meanwhile goes to stderr.
    There is none where the exit code is 2 or 130.

    Exit code: 0 when they are served (with --dry-run: could be), 1 when they are not, 2 when the request is wrong
    or no server answers.
    """
    teller, change = OutcomeReporter(admin=admin, form=output), _Change(**named)
    if end_canary:
        if paths or change.expect:
            out = "the PATHS" if paths else "--expect"
            raise click.UsageError(f"--end-canary rolls back what is tried and applies nothing: leave out {out}")
        return _end(teller, change.author)
    if not paths:
        raise click.UsageError("name the files or folders of the policies")
    if change.canary is None:
        _refuse_what_is_of_canaries()
    try:
        policies = load(paths)
    except PolicyErrors as errors:
        complaints = from_errors(errors)
        click.echo(as_text(complaints), err=True)
        return teller.end(
            REFUSED,
            reason="the policies have problems",
            errors=[one.record() for one in complaints],
        )
    texts = _texts(paths)
    if teller.data:
        teller = replace(teller, warnings=_warnings(policies))
    if change.dry_run:
        teller = _compared(teller, policies)
    try:
        answer = fetch(admin, APPLY, body={"texts": texts, **change.body()}).value
    except AdminApiError as refusal:
        return teller.report_refusal(refusal)
    except KeyboardInterrupt:
        click.echo("not waited for: `switchgear status` says whether the server had it already", err=True)
        return INTERRUPTED
    if answer.state == "canary":
        return _watched(teller, change.author, answer.digest)
    return teller.report_answer(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """The options that describe the change; ``length`` is that of the canary."""

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
        """Who makes the change: ``--by``, else the user of this shell."""
        return self.by or user_name()

    def body(self) -> dict[str, Any]:
        """The request without its texts; ``click.BadParameter`` for a value that cannot be."""
        return {
            "by": self.author,
            "reason": self.reason,
            "dry_run": self.dry_run,
            "canary_percent": 0.0 if self.canary is None else _share(self.canary, "--canary"),
            "for_s": _seconds(self.length),
            "yes_if_unknown": self.yes_if_unknown,
            # Older servers refuse fields that they do not know.
            **({} if self.slo is None else {"slo_percent": _objective(self.slo)}),
            **({"expect": self.expect} if self.expect else {}),
        }


def _warnings(policies: PolicySet) -> list[Mapping[str, str | int]]:
    """What ``switchgear validate`` warns of."""
    from policies.lints.lint import lint  # noqa: PLC0415 - only where a machine reads them

    return [one.record() for one in from_findings(lint(policies))]


def _compared(teller: OutcomeReporter, policies: PolicySet) -> OutcomeReporter:
    """Who tells of a dry run, once people were told what it would change."""
    # Comparing takes what makes Envoy's messages, two seconds of a CPU to load: a canary is ended without.
    from xds_server.cli.diff import diff_of_policies, diff_record, print_diff, served_policies  # noqa: PLC0415

    old, views, arrivals, against = served_policies(teller.admin)
    found = diff_of_policies(old, policies, views, arrivals)
    if teller.data:
        return replace(teller, diff=diff_record(found, against))
    print_diff(found, "text", everything=False, against=against)
    return teller


def _texts(paths: tuple[Path, ...]) -> Mapping[str, str]:
    """The files by name; ``click.UsageError`` for too many."""
    texts = {}
    for file in search(paths).files:
        content = read(file)
        text = content if isinstance(content, Problem) else decode_text(content)
        if isinstance(text, Problem):
            raise click.ClickException(f"{file} changed while it was read: {text.message}")
        texts[str(file)] = text
    if sum(map(len, texts.values())) > MAX_TEXT_BYTES:
        raise click.UsageError(f"a server takes at most {MAX_TEXT_BYTES // 1024**2} MiB of policies")
    return texts


def _share(text: str, option: str) -> float:
    try:
        share = float(text.removesuffix("%"))
    except ValueError:
        share = 0.0
    if not 0 < share <= MAX_PERCENT:  # neither is NaN
        raise click.BadParameter(f"{text!r} is no share above 0% and up to 100%", param_hint=option)
    return share


def _objective(text: str) -> float:
    percent = _share(text, "--slo")
    if percent <= 1:
        raise click.BadParameter(
            f"{text!r} is a percent or less: write 99.5% where 0.995 is meant", param_hint="--slo"
        )
    return percent


def _refuse_what_is_of_canaries() -> None:
    """``click.UsageError`` where somebody means to try something, and all proxies would have it at once."""
    context = click.get_current_context()
    for name, option in (("slo", "--slo"), ("length", "--for"), ("yes_if_unknown", "--yes-if-unknown")):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} is for a canary: say --canary, too")


def _seconds(length: str) -> float:
    try:
        return parse_duration(length)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--for") from error


def _watched(teller: OutcomeReporter, by: str, digest: str) -> int:
    """Tell how the canary of these policies does until it has ended."""
    told: tuple[Any, ...] = ()
    told_at_s = 0.0
    try:
        while True:
            answer = _looked(teller.admin)
            now = answer.value
            if now.state != "running" or now.digest != digest:
                break
            said = f"{now.word}: {'; '.join(now.reasons)}"
            # Figures move each second; what they come to does not.
            news = (now.connected, len(now.proxies), _FIGURE.sub("", said))
            if news != told or now.age_s - told_at_s >= PROGRESS_EACH_S:
                told, told_at_s = news, now.age_s
                proxies = f"{now.connected} of {len(now.proxies)} canary proxies"
                teller.print_text(printable(f"{now.age_s:.0f} s: {proxies}, {now.requests} requests; {said}"))
            time.sleep(POLL_EACH_S)
    except KeyboardInterrupt:
        click.echo("rolling back", err=True)
        return _end(teller, by)
    return _ended(teller, answer, digest)


def _looked(admin: str) -> AdminAnswer[CanaryStatus]:
    """How the canary stands. One answer that fails to come is no reason to leave: the server may be busy."""
    lost_at_s = None
    while True:
        try:
            return fetch(admin, CANARY)
        except (NoAnswerError, AdminApiError) as error:
            now_s = time.monotonic()
            if lost_at_s is None:
                lost_at_s = now_s
                click.echo(f"{printable(error.format_message())}; asking again", err=True)
            if now_s - lost_at_s >= LOST_S:
                click.echo("the server decides without us; `switchgear history` says what came of it", err=True)
                raise
        time.sleep(POLL_EACH_S)


def _ended(teller: OutcomeReporter, answer: AdminAnswer[CanaryStatus], digest: str = "") -> int:
    now = answer.value
    reason = "; ".join(now.reasons)
    reasons = printable(reason.replace("\n", " "))
    if now.state == "none":
        reason = "the server was started again, and serves everybody what it did before"
        click.echo(f"rolled back: {reason}", err=True)
        return teller.end(ROLLED_BACK, reason=reason, digest=digest)
    if digest and now.digest != digest:
        reason = "it has ended, and another came after it; `switchgear history` has what is served"
        click.echo(reason, err=True)
        return teller.end(SUPERSEDED, reason=reason, digest=digest)
    if now.state == "served":
        teller.print_text(f"all proxies have it now: version {now.version} ({reasons})")
        return teller.end("served", reason=reason, digest=now.digest, version=now.version, canary=answer.document)
    click.echo(f"rolled back: {reasons}", err=True)
    return teller.end(ROLLED_BACK, reason=reason, digest=now.digest, canary=answer.document)


def _end(teller: OutcomeReporter, by: str) -> int:
    try:
        return _ended(teller, fetch(teller.admin, END_CANARY, query=[("by", by)]))
    except AdminApiError as refusal:
        return teller.report_refusal(refusal)
    except (NoAnswerError, KeyboardInterrupt) as error:
        click.echo(
            "it may go on: the server decides. `switchgear status` says how it stands, and "
            "`switchgear apply --end-canary` has it go back",
            err=True,
        )
        if isinstance(error, KeyboardInterrupt):
            return INTERRUPTED
        raise


def user_name() -> str:
    """The user of this shell; empty where nobody has a name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
