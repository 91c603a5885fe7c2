"""TYPE and NAME on the command line: ``engines``, ``eng chat/e0``, ``engine/chat/e0``, ``pools,zones``."""

from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem

from policies.findings import did_you_mean
from xds_server.cli.completion import complete_names
from xds_server.cli.get_columns import TABLES


def plural_of(word: str) -> str | None:
    """The type that a word names, in plural, whether it is plural, singular or short; None where it is none."""
    known = {alias: plural for plural, spec in TABLES.items() for alias in (plural, spec.singular, spec.short)}
    return known.get(word.lower())


def resource_type(word: str) -> str:
    """The same; usage error where it is none."""
    found = plural_of(word)
    if found is None:
        hint = did_you_mean(word, [one for plural, spec in TABLES.items() for one in (plural, spec.singular)])
        raise click.UsageError(f"unknown type {word!r}; {hint or 'use one of ' + ', '.join(TABLES)}")
    return found


def requested(words: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Names by type; no names means all. Usage error where TYPE and TYPE/NAME are mixed."""
    first = words[0]
    if "/" in first and plural_of(first.partition("/")[0]):
        found: dict[str, tuple[str, ...]] = {}
        for word in words:
            kind, slash, name = word.partition("/")
            if not (slash and name):
                raise click.UsageError(f"{word!r} is not TYPE/NAME; do not mix TYPE NAME and TYPE/NAME")
            plural = resource_type(kind)
            found[plural] = (*found.get(plural, ()), name)
        return found
    types = [resource_type(one) for one in first.split(",")]
    if len(types) > 1 and len(words) > 1:
        raise click.UsageError("names go with one TYPE; for several use TYPE/NAME ...")
    return dict.fromkeys(types, words[1:])


def parse_resources(
    context: click.Context, _argument: click.Parameter, words: tuple[str, ...]
) -> Mapping[str, tuple[str, ...]] | tuple[str, ...]:
    """Callback of the argument: names by type; the words themselves for completion."""
    return words if context.resilient_parsing or not words else requested(words)


def complete_resources(context: click.Context, parameter: click.Parameter, begin: str) -> list[CompletionItem]:
    """Types for the first word, then names of that type; ``TYPE/`` is completed by names as well."""
    before = context.params.get(parameter.name or "") or ()
    if before:
        kind = plural_of(str(before[0]).partition("/")[0])
        if kind and "/" not in str(before[0]):
            return _names(kind, context, parameter, begin)
    word, slash, name = begin.partition("/")
    kind = plural_of(word)
    if slash and kind:
        return [CompletionItem(f"{word}/{one.value}") for one in _names(kind, context, parameter, name)]
    words = [one for plural, spec in TABLES.items() for one in (plural, spec.singular)]
    return [CompletionItem(one) for one in dict.fromkeys(words) if one.startswith(begin)]


def _names(kind: str, context: click.Context, parameter: click.Parameter, begin: str) -> list[CompletionItem]:
    listed = {"orders": "engines", "events": "engines"}.get(kind, kind)
    if listed not in ("engines", "pools", "zones", "proxies", "objectives"):
        return []
    return complete_names(listed)(context, parameter, begin)
