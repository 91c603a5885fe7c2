"""The agent's YAML file as texts with line numbers, for error messages."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from engine.agent.config_error import AgentConfigError


def file_settings(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield key, location (``agent.yaml:3``) and text of every setting; lists are joined by commas.

    Raises AgentConfigError if the file cannot be read or is not a mapping.
    """
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise AgentConfigError(f"{path}: {error}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise AgentConfigError(f"{path}:{line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise AgentConfigError(f"{path}:1: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise AgentConfigError(f"{path}:1: nested too deeply") from error
    if root is None:
        return
    if not isinstance(root, yaml.MappingNode):
        raise AgentConfigError(f"{path}:1: write settings as 'name: value' lines")
    seen: set[str] = set()
    for key, value in root.value:
        place = f"{path}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise AgentConfigError(f"{place}: a key must be a name; write settings as 'name: value' lines")
        if key.value in seen:
            raise AgentConfigError(f"{place}: duplicate key {key.value}; remove one")
        seen.add(key.value)
        yield key.value, place, _text(place, value)


def _text(place: str, value: yaml.Node) -> str:
    if isinstance(value, yaml.ScalarNode):
        return str(value.value)
    if isinstance(value, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in value.value):
        return ",".join(str(item.value) for item in value.value)
    raise AgentConfigError(f"{place}: a value must be text, a number or a list of these")
