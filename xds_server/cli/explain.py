"""``switchgear explain``: explain a field or code; with policy files, show its effective value and origin."""

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from command_line.output_format import DATA, as_data, output_option
from policies.codes import CODES, REMARKS
from policies.field_targets import takes_effect
from policies.findings import PolicyErrors, did_you_mean
from policies.merge import setter
from policies.model import KINDS, PolicySet
from policies.reference import (
    code_markdown,
    codes_markdown,
    default_text,
    defaults_yaml,
    policies_markdown,
    yaml_value,
)
from policies.schema import FieldDoc, fields
from xds_server.cli.diagnostics import as_text, from_errors, printable
from xds_server.cli.policies_option import load_policies, policies_option

_WIDTH: Final = 100
_BUILT_IN: Final = "built-in default"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """A field and the kind it belongs to."""

    kind: str
    doc: FieldDoc


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveValue:
    """A field's effective value and its origin. ``owner`` is a pool, or ``Kind/name``."""

    owner: str
    path: str
    value: Any
    layer: str
    origin: str


def _printer(make: Callable[[], str]) -> Callable[[click.Context, click.Parameter, bool], None]:
    """A callback that prints a text and exits."""

    def answer(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            click.echo(make(), nl=False)
            ctx.exit(0)

    return answer


def _whole(name: str, make: Callable[[], str], text: str) -> Callable[[Any], Any]:
    return click.option(name, is_flag=True, is_eager=True, expose_value=False, callback=_printer(make), help=text)


@click.command(name="explain")
@click.argument("field", required=False)
@policies_option("Show the field's effective values in this policy file or folder, - for stdin; repeatable.")
@output_option()
@_whole("--defaults", defaults_yaml, "Print a policy with all defaults and their reasons, and exit.")
@_whole("--reference", policies_markdown, "Print the reference of all fields (Markdown), and exit.")
@_whole("--codes", codes_markdown, "Print the reference of all codes (Markdown), and exit.")
def command(field: str | None, filename: tuple[Path, ...], output: str) -> int:
    """Explain FIELD (limits.maxWait, ResiliencePolicy.spec.limits.maxWait), a kind or a code (SG031).

    With -f, show the effective value for each pool and the line that sets it. Without FIELD, list all fields.
    """
    if field is None:
        click.echo("\n".join(_tree(KINDS)))
        return 0
    if kinds := [kind for kind in KINDS if kind.lower() == field.lower()]:
        click.echo("\n".join(_tree(kinds)))
        return 0
    if code := CODES.get(field.upper()) or REMARKS.get(field.upper()):
        click.echo(code_markdown(code).strip())
        return 0
    named = _named(field)
    if not named:
        known = {
            name for kind in KINDS for path in fields(kind) for name in (_plain(path), path.rpartition(".")[2])
        }
        guess = did_you_mean(_plain(field), sorted(known)) or did_you_mean(field.rpartition(".")[2], sorted(known))
        if not guess and re.match(r"(?i)sg\d", field):
            guess = "`switchgear explain --codes` lists them"
        hint = guess or "`switchgear explain` lists all fields"
        raise click.UsageError(f"unknown field or code {field!r}; {hint}")
    settings: tuple[EffectiveValue, ...] = ()
    if filename:
        try:
            settings = tuple(_settings(load_policies(filename), named))
        except PolicyErrors as errors:
            click.echo(as_text(from_errors(errors)), err=True)
            return 1
    if output in DATA:
        # Through JSON: YAML knows no enums.
        click.echo(as_data(json.loads(json.dumps(_record(named, settings))), output), nl=False)
    else:
        blocks = ["\n".join(_explained(one)) for one in named]
        click.echo("\n\n".join([*blocks, *(["\n".join(_listed(settings))] if filename else [])]))
    return 0


def _plain(path: str) -> str:
    return re.sub(r"\[[0-9]*\]", "", path)


def _named(text: str) -> tuple[_Named, ...]:
    """Fields by full path, or by its end where that is unique, such as ``maxWait``."""
    wanted = _plain(text)
    every = [_Named(kind=kind, doc=doc) for kind in KINDS for doc in fields(kind).values()]
    exact = [one for one in every if wanted in {f"{one.kind}.{_plain(one.doc.path)}", _plain(one.doc.path)}]
    inner = [one for one in every if _plain(one.doc.path) == f"spec.{wanted}"]
    ending = [one for one in every if _plain(one.doc.path).endswith(f".{wanted}")]
    return tuple(exact or inner or ending)


def _tree(kinds: Iterable[str]) -> Iterator[str]:
    for kind in kinds:
        yield kind
        for doc in fields(kind).values():
            indent = "  " * (doc.path.count(".") + 1)
            name = doc.path.rpartition(".")[2] + ("[]" if doc.type.startswith("list of block") else "")
            default = "" if doc.block else default_text(doc).strip("`")
            yield f"{indent}{name:<{46 - len(indent)}}{doc.type:<24}{default}".rstrip()


def _explained(one: _Named) -> Iterator[str]:
    doc = one.doc
    yield click.style(f"{one.kind}.{doc.path}", bold=True)
    yield from textwrap.wrap(doc.description, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    rows = {
        "type": doc.type,
        "takes": doc.allowed if doc.allowed != doc.type else "",
        "default": default_text(doc).strip("`"),
        "unit": doc.unit if doc.unit != "duration" else "",
        "why": doc.why,
        **_carried(doc),
    }
    for name, text in rows.items():
        if text:
            label = f"  {name + ':':<10}"
            yield textwrap.fill(text, _WIDTH, initial_indent=label, subsequent_indent=" " * 12)
    inner = [
        other.path.removeprefix(doc.path).lstrip(".[]")
        for other in fields(one.kind).values()
        if other.path.startswith((f"{doc.path}.", f"{doc.path}[]."))
    ]
    direct = [name for name in inner if "." not in name]
    if direct:
        yield textwrap.fill(", ".join(direct), _WIDTH, initial_indent="  fields:   ", subsequent_indent=" " * 12)


def _carried(doc: FieldDoc) -> Mapping[str, str]:
    """Resources that an edit changes in Envoy, and the exported fields."""
    if not doc.holds_value or doc.targets is None:
        return {}
    outcomes = {"istio": doc.targets.istio, "gateway": doc.targets.gateway_api}
    return {
        "live": takes_effect(doc.targets.live),
        **{name: f"{one.fidelity.value}: {one.how}" for name, one in outcomes.items()},
    }


def _settings(policies: PolicySet, named: Sequence[_Named]) -> Iterator[EffectiveValue]:
    leaves = [
        _Named(kind=one.kind, doc=doc)
        for one in named
        for doc in fields(one.kind).values()
        if not doc.block and (doc.path == one.doc.path or doc.path.startswith((f"{one.doc.path}.",)))
    ]
    for one in leaves:
        if one.kind == "ResiliencePolicy" and one.doc.path.startswith("spec."):
            yield from _effective(policies, one.doc.path)
        else:
            yield from _written(policies, one)


def _effective(policies: PolicySet, path: str) -> Iterator[EffectiveValue]:
    for pool, spec in policies.effective.items():
        data = {"spec": spec.model_dump(mode="json", by_alias=True)}
        for concrete, value in _values(data, path):
            name = setter(policies, pool, concrete)
            origin = policies.origins.get(f"ResiliencePolicy/{name}.{concrete}")
            layer = f"policy {name}" if name else _BUILT_IN
            yield EffectiveValue(owner=pool, path=concrete, value=value, layer=layer, origin=str(origin or ""))


def _written(policies: PolicySet, one: _Named) -> Iterator[EffectiveValue]:
    documents: Mapping[str, Mapping[str, Any]] = {
        "EnginePool": policies.pools,
        "ModelRoute": policies.routes,
        "ResiliencePolicy": policies.policies,
    }
    for name, model in documents[one.kind].items():
        for path, value in _values(model.model_dump(mode="json", by_alias=True), one.doc.path):
            origin = policies.origins.get(f"{one.kind}/{name}.{path}")
            layer = "written" if origin else _BUILT_IN
            yield EffectiveValue(
                owner=f"{one.kind}/{name}", path=path, value=value, layer=layer, origin=str(origin or "")
            )


def _values(data: Any, path: str, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value at a path where ``[]`` means all items, with its own path."""
    if not path:
        yield above, data
        return
    step, _, rest = path.partition(".")
    name, each = step.removesuffix("[]"), step.endswith("[]")
    if not isinstance(data, dict) or name not in data:
        return
    here = f"{above}.{name}" if above else name
    if each:
        for number, item in enumerate(data[name]):
            yield from _values(item, rest, f"{here}[{number}]")
    else:
        yield from _values(data[name], rest, here)


def _listed(settings: Sequence[EffectiveValue]) -> Iterator[str]:
    if not settings:
        yield "No document in these files has this field."
    last = ""
    for one in settings:
        if one.path != last and not re.search(r"\[[0-9]+\]", one.path):
            last = one.path
            yield click.style(one.path, bold=True)
        shown = f"{one.owner} {one.path}" if re.search(r"\[[0-9]+\]", one.path) else one.owner
        source = f"{one.layer}, {one.origin}" if one.origin else one.layer
        yield printable(f"  {shown:<28} {_value(one):<24} {source}")


def _value(one: EffectiveValue) -> str:
    return "none" if one.value is None else yaml_value(one.value)


def _record(named: Sequence[_Named], settings: Sequence[EffectiveValue]) -> Mapping[str, Any]:
    return {
        "fields": [
            {
                "kind": one.kind,
                "path": one.doc.path,
                "type": one.doc.type,
                "allowed": one.doc.allowed,
                "default": one.doc.default,
                "required": one.doc.required,
                "unit": one.doc.unit,
                "why": one.doc.why,
                "description": one.doc.description,
                "live": list(one.doc.targets.live.names) if one.doc.holds_value and one.doc.targets else [],
            }
            for one in named
        ],
        "settings": [
            {"owner": one.owner, "path": one.path, "value": one.value, "layer": one.layer, "origin": one.origin}
            for one in settings
        ],
    }
