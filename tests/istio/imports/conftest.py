"""Files of other tools, imported by the command itself."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from policies.load import load_contents
from policies.model import PolicySet
from xds_server.cli import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an import answered: its exit status, the policies, and the list."""

    status: int
    text: str
    listing: str

    @property
    def policies(self) -> PolicySet:
        return load_contents({Path("imported.yaml"): self.text.encode()})

    def said_of(self, path: str) -> list[str]:
        """The lines of the list about this field."""
        return [line for line in self.listing.splitlines() if f" {path} =" in line or f" {path}:" in line]


Import = Callable[..., Outcome]


@pytest.fixture
def run_import(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Import:
    """Runs ``switchgear import KIND`` on one file with this content, or on stdin."""

    def run(kind: str, content: str | bytes, *options: str, stdin: bool = False) -> Outcome:
        data = content if isinstance(content, bytes) else content.encode()
        path = tmp_path / "in.yaml"
        if stdin:
            monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        else:
            path.write_bytes(data)
        capsys.readouterr()
        status = main(["import", kind, "-f", "-" if stdin else str(path), *options])
        out, err = capsys.readouterr()
        return Outcome(status=status, text=out, listing=err)

    return run
