"""What became of a change of policies: told to people as it goes on, and to machines in one document at the end.

In data all that people are told goes to stderr, so that stdout holds the document and nothing else. The document
has the names that ``diff``, ``history``, ``status`` and ``validate`` have for the same things.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from command_line.output_format import DATA, as_data, output_option
from xds_server.admin_api.endpoints import HISTORY, VERSION
from xds_server.admin_api.version_types import ChangeStatus, ReplacedVersion, VersionStatus
from xds_server.cli.admin_client import AdminApiError, NoAnswerError, fetch
from xds_server.cli.diagnostics import printable
from xds_server.model.text import age_text

form_option = output_option()

DONE: Final = frozenset({"served", "judged"})
ROLLED_BACK: Final = "rolled-back"
REFUSED: Final = "refused"
SUPERSEDED: Final = "superseded"

_STATES: Final = {
    "held": "held back",
    "failed": "not served",
    "superseded": "not served",
    "pending": "not served yet",
}
_PROBLEM: Final = ("code", "file", "line", "column", "path", "message", "found", "allowed", "hint")

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeReporter:
    """Who tells what becomes of a change, in this form; ``warnings`` and ``diff`` are of what is to be served."""

    admin: str
    form: str
    warnings: Sequence[Record] = ()
    diff: Record | None = None

    @property
    def data(self) -> bool:
        """Whether a machine reads the answer."""
        return self.form in DATA

    def print_text(self, text: str) -> None:
        """Say this to people; where a machine reads the answer, beside it."""
        click.echo(text, err=self.data)

    def end(
        self,
        outcome: str,
        *,
        reason: str = "",
        digest: str = "",
        version: int = 0,
        replaced: ReplacedVersion | VersionStatus | None = None,
        canary: Record | None = None,
        errors: Sequence[Record] = (),
    ) -> int:
        """The exit code for this outcome, which is told in data where that is asked for."""
        code = 0 if outcome in DONE else 1
        if not self.data:
            return code
        if version and replaced is None:
            replaced = self._before(version)
        document = {
            "outcome": outcome,
            "reason": reason,
            "digest": digest,
            "serving": {"number": version, "digest": digest} if version else self._serving(),
            "replaced": None
            if replaced is None
            else {"number": replaced.number, "digest": replaced.digest, "by": replaced.by},
            "canary": canary,
            "errors": list(errors),
            "warnings": list(self.warnings),
            "diff": self.diff,
        }
        click.echo(as_data(document, self.form), nl=False)
        return code

    def report_refusal(self, refusal: AdminApiError) -> int:
        """Say that the server refuses, and why."""
        click.echo(f"no: {printable(refusal.message)}", err=True)
        outcome = SUPERSEDED if refusal.answer.get("state") == SUPERSEDED else REFUSED
        return self.end(outcome, reason=refusal.message, errors=[*map(_problem, _problems(refusal))])

    def report_answer(self, answer: ChangeStatus) -> int:
        """Say what became of a change by the server's answer; 0 when it is done."""
        state, reason = answer.state, printable(answer.reason.replace("\n", " "))
        digest = answer.digest[:12]
        before = answer.replaced
        if state == "served":
            instead = ""
            if before is not None:
                instead = printable(
                    f" in place of version {before.number} ({before.how} {age_text(before.age_s)} ago)"
                ).replace("\n", " ")
            self.print_text(
                f"version {answer.version} ({digest}) is served{instead}; it stands until the policy files change"
            )
            if reason:
                click.echo(f"it may not outlive the server: {reason}", err=True)
        elif state == "judged":
            self.print_text(f"the server would take it ({digest}); nothing was changed")
        else:
            click.echo(f"{_STATES.get(state, state)}: {reason}", err=True)
            if state == "held":
                click.echo("To serve it anyway: switchgear release", err=True)
        return self.end(
            state,
            reason=answer.reason,
            digest=answer.digest,
            version=answer.version,
            replaced=before,
        )

    def _serving(self) -> Record | None:
        """The version that is served, as ``diff`` names it; nothing where the server does not say."""
        try:
            found = fetch(self.admin, VERSION, "serving").value
            return {"number": found.number, "digest": found.digest}
        except (NoAnswerError, AdminApiError) as error:
            click.echo(f"what is served is not known: {printable(error.format_message())}", err=True)
            return None

    def _before(self, version: int) -> VersionStatus | None:
        """The version before this one, which it took the place of; nothing where the server does not say."""
        try:
            versions = fetch(self.admin, HISTORY).value.versions
            return next((one for one in versions if one.number == version - 1), None)
        except (NoAnswerError, AdminApiError) as error:
            click.echo(f"what was served before is not known: {printable(error.format_message())}", err=True)
            return None


def _problems(refusal: AdminApiError) -> Sequence[Record]:
    found = refusal.answer.get("problems")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _problem(one: Record) -> Record:
    """A problem that the server has, as ``validate`` names its parts; a server of before has the place in one."""
    rest = {name: 0 if name in ("line", "column") else "" for name in _PROBLEM}
    return {"level": "error", **rest, "file": one.get("place", ""), **{k: v for k, v in one.items() if k in rest}}
