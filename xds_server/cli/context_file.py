"""The context file: named servers and how to reach them, in the manner of a kubeconfig.

``~/.config/switchgear/config.yaml``, or the file of ``--config`` or ``SWITCHGEAR_CONFIG``. Relative paths start at
its folder.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click
import yaml

from policies.findings import did_you_mean

FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "server": "admin",
        "certificate-authority": "cacert",
        "client-certificate": "cert",
        "client-key": "key",
        "token-file": "token_file",
        "server-name": "server_name",
        "timeout": "timeout",
    }
)
"""Fields of a context, and the global option that each stands for."""

PATHS: Final = frozenset({"certificate-authority", "client-certificate", "client-key", "token-file"})
_TOP: Final = ("apiVersion", "kind", "current-context", "contexts")
_ENTRY: Final = ("name", "context")
_API_VERSION: Final = "switchgear.dev/v1"


class ContextFileError(click.ClickException):
    """The file cannot be used; the message says where, why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFile:
    """The contexts by name, each with its fields as written, and the current one (empty: none)."""

    path: Path
    current: str = ""
    contexts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def context(self, name: str) -> Mapping[str, str]:
        """The fields of this context; ``ContextFileError`` where it is missing."""
        found = self.contexts.get(name)
        if found is None:
            hint = did_you_mean(name, self.contexts)
            known = hint or "list them with `switchgear config get-contexts`"
            raise ContextFileError(f"{self.path}: no context {name!r}; {known}")
        return found

    def document(self) -> dict[str, Any]:
        """The file as YAML holds it."""
        contexts = [{"name": name, "context": dict(fields)} for name, fields in self.contexts.items()]
        return {
            "apiVersion": _API_VERSION,
            "kind": "Config",
            "current-context": self.current,
            "contexts": contexts,
        }

    def write(self) -> None:
        """Replace the file, readable by its owner alone."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, prefix=".config-", delete=False, encoding="utf-8"
            ) as file:
                yaml.safe_dump(self.document(), file, sort_keys=False, allow_unicode=True)
            Path(file.name).replace(self.path.resolve())
        except OSError as error:
            raise ContextFileError(f"{self.path}: cannot write: {error.strerror or error}") from error


def default_path() -> Path:
    """The file where neither ``--config`` nor ``SWITCHGEAR_CONFIG`` names one."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(folder) if folder else _home() / ".config") / "switchgear" / "config.yaml"


def _home() -> Path:
    """The user's folder; / for a user without an entry in the system, as container runtimes set it."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def read_context_file(path: Path, *, required: bool = False) -> ContextFile:
    """The file; without contexts where it does not exist and is not ``required``."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if required:
            hint = "create it with `switchgear config set-context`"
            raise ContextFileError(f"{path}: no such file; {hint}") from None
        return ContextFile(path=path)
    except (OSError, UnicodeDecodeError) as error:
        raise ContextFileError(f"{path}: cannot read: {getattr(error, 'strerror', '') or error}") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ContextFileError(f"{path}{line}: not YAML: {getattr(error, 'problem', '') or error}") from error
    except RecursionError as error:
        raise ContextFileError(f"{path}: nested too deeply") from error
    return _Reader(path).file(root)


class _Reader:
    """Turns nodes into values; each error names file, line and field."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def file(self, root: yaml.Node | None) -> ContextFile:
        if root is None:
            return ContextFile(path=self._path)
        current, contexts = "", {}
        for key, node in self._mapping(root, "the file", _TOP):
            if key == "current-context":
                current = self._text(node, key)
            elif key == "contexts":
                contexts = self._contexts(node)
        return ContextFile(path=self._path, current=current, contexts=contexts)

    def _contexts(self, node: yaml.Node) -> dict[str, Mapping[str, str]]:
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(node, "contexts", "expected a list of name and context")
        contexts: dict[str, Mapping[str, str]] = {}
        for number, entry in enumerate(node.value):
            place = f"contexts[{number}]"
            name, fields = "", {}
            for key, value in self._mapping(entry, place, _ENTRY):
                if key == "name":
                    name = self._text(value, f"{place}.name")
                else:
                    pairs = self._mapping(value, f"{place}.context", tuple(FIELDS))
                    fields = {one: self._text(found, f"{place}.context.{one}") for one, found in pairs}
            if not name:
                raise self._error(entry, f"{place}.name", "missing; add a name")
            if name in contexts:
                raise self._error(entry, f"{place}.name", f"duplicate context {name!r}; remove one")
            contexts[name] = fields
        return contexts

    def _mapping(self, node: yaml.Node, place: str, known: tuple[str, ...]) -> Iterator[tuple[str, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, place, f"expected {', '.join(known)}")
        for key_node, value in node.value:
            key = self._text(key_node, place)
            if key not in known:
                hint = did_you_mean(key, known)
                raise self._error(key_node, place, f"unknown field {key!r}; {hint or 'use ' + ', '.join(known)}")
            yield key, value

    def _text(self, node: yaml.Node, place: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, place, "expected text")
        return "" if node.tag == "tag:yaml.org,2002:null" else str(node.value)

    def _error(self, node: yaml.Node, place: str, problem: str) -> ContextFileError:
        return ContextFileError(f"{self._path}:{node.start_mark.line + 1}: {place}: {problem}")
