"""``TYPE [NAME ...]`` or ``TYPE/NAME ...`` of ``get`` and ``describe``: types, names, and their completion."""

from collections.abc import Sequence
from enum import Enum

import click
from click.shell_completion import CompletionItem

from policies.findings import did_you_mean


class ResourceType(Enum):
    """What ``get`` lists; the values are plural, singular and short name."""

    SCENARIOS = ("scenarios", "scenario", "sc")
    FAULTS = ("faults", "fault", "fl")

    @property
    def plural(self) -> str:
        """Name of the list."""
        return self.value[0]

    @property
    def singular(self) -> str:
        """Name of one."""
        return self.value[1]


_BY_NAME = {name: kind for kind in ResourceType for name in kind.value}


def resource_names(words: Sequence[str]) -> tuple[ResourceType, tuple[str, ...]]:
    """The type and the names in ``TYPE NAME ...`` or ``TYPE/NAME ...``; usage error for an unknown type."""
    first = words[0].partition("/")[0]
    kind = _type(first)
    if "/" not in words[0]:
        return kind, tuple(words[1:])
    names = []
    for word in words:
        prefix, slash, name = word.partition("/")
        if not slash or not name:
            raise click.UsageError(f"{word!r}: write every name as TYPE/NAME, or TYPE once and then the names")
        if _type(prefix) is not kind:
            raise click.UsageError(f"{word!r}: one type at a time ({kind.plural})")
        names.append(name)
    return kind, tuple(names)


def _type(name: str) -> ResourceType:
    kind = _BY_NAME.get(name.lower())
    if kind is None:
        hint = did_you_mean(name, _BY_NAME)
        known = ", ".join("/".join(one.value) for one in ResourceType)
        raise click.UsageError(f"unknown type {name!r}{f': {hint}' if hint else ''}; types: {known}")
    return kind


def complete_resources(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the type, then names of that type."""
    words = context.params.get("words") or ()
    if not words:
        return [CompletionItem(one.plural) for one in ResourceType if one.plural.startswith(incomplete)]
    kind = _BY_NAME.get(words[0].lower())
    return [CompletionItem(name) for name in (_names(kind) if kind else ()) if name.startswith(incomplete)]


def complete_scenarios(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete scenarios of the library, and files."""
    names = [CompletionItem(one) for one in _names(ResourceType.SCENARIOS) if one.startswith(incomplete)]
    return [*names, CompletionItem(incomplete, type="file")]


def complete_faults(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete kinds of faults."""
    return [CompletionItem(one) for one in _names(ResourceType.FAULTS) if one.startswith(incomplete)]


def _names(kind: ResourceType) -> Sequence[str]:
    # A key press waits: reading the library takes a second, its file names take none.
    if kind is ResourceType.SCENARIOS:
        from importlib.resources import files  # noqa: PLC0415

        found = (one.name for one in files("chaos").joinpath("scenarios").iterdir())
        return sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml"))
    from chaos.scenario.scenario_schema import fault_kinds  # noqa: PLC0415

    return tuple(fault_kinds())
