"""The outcome of a policy change: progress as text, and with ``-o json`` one document at the end.

With ``-o json`` all text goes to stderr, so that stdout holds the document alone. Its keys are those of ``diff``,
``history``, ``status`` and ``validate``.
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
    "failed": "not applied",
    "superseded": "not applied",
    "pending": "not applied yet",
}
_PROBLEM: Final = ("code", "file", "line", "column", "path", "message", "found", "allowed", "hint")

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeReporter:
    """Reports a change in this form; ``warnings`` and ``diff`` are about the new policies."""

    admin: str
    form: str
    warnings: Sequence[Record] = ()
    diff: Record | None = None

    @property
    def data(self) -> bool:
        """Whether the answer is data."""
        return self.form in DATA

    def print_text(self, text: str) -> None:
        """Print to stdout; to stderr where the answer is data."""
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
        """The exit code of this outcome; prints the document where the answer is data."""
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
        """Print why the server refuses."""
        click.echo(f"refused: {printable(refusal.message)}", err=True)
        outcome = SUPERSEDED if refusal.answer.get("state") == SUPERSEDED else REFUSED
        return self.end(outcome, reason=refusal.message, errors=[*map(_problem, _problems(refusal))])

    def report_answer(self, answer: ChangeStatus) -> int:
        """Print the server's answer to a change; 0 when it is done."""
        state, reason = answer.state, printable(answer.reason.replace("\n", " "))
        digest = answer.digest[:12]
        before = answer.replaced
        if state == "served":
            instead = ""
            if before is not None:
                instead = printable(
                    f"; previously version {before.number} ({before.how}, {age_text(before.age_s)} ago)"
                ).replace("\n", " ")
            now = f"Now serving version {answer.version} ({digest}){instead}."
            self.print_text(f"{now} It stays until the policy files change.")
            if reason:
                click.echo(f"warning: not persisted: {reason}", err=True)
        elif state == "judged":
            self.print_text(f"The server accepts these policies ({digest}); nothing was changed.")
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
        """The served version, as ``diff`` names it; None where the server does not answer."""
        try:
            found = fetch(self.admin, VERSION, "serving").value
            return {"number": found.number, "digest": found.digest}
        except (NoAnswerError, AdminApiError) as error:
            click.echo(f"served version unknown: {printable(error.format_message())}", err=True)
            return None

    def _before(self, version: int) -> VersionStatus | None:
        """The version before this one; None where the server does not answer."""
        try:
            versions = fetch(self.admin, HISTORY).value.versions
            return next((one for one in versions if one.number == version - 1), None)
        except (NoAnswerError, AdminApiError) as error:
            click.echo(f"previous version unknown: {printable(error.format_message())}", err=True)
            return None


def _problems(refusal: AdminApiError) -> Sequence[Record]:
    found = refusal.answer.get("problems")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _problem(one: Record) -> Record:
    """A problem from the server with the keys of ``validate``; older servers send the place as one text."""
    rest = {name: 0 if name in ("line", "column") else "" for name in _PROBLEM}
    return {"level": "error", **rest, "file": one.get("place", ""), **{k: v for k, v in one.items() if k in rest}}
