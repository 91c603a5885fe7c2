"""The reference of scenarios as Markdown, made from the models: fields, faults, codes, the library, the exports.

``docs/chaos/reference.md`` holds what ``reference_markdown`` returns; a test compares them.
"""

from collections.abc import Iterator

from chaos.export.litmus import why_not_in_litmus
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from chaos.scenario.scenario_codes import SCENARIO_CODES
from chaos.scenario.scenario_library import scenario_library, scenarios_labelled
from chaos.scenario.scenario_reader import LoadedScenario
from chaos.scenario.scenario_schema import FAULT, fault_kinds, scenario_fields
from policies.reference import code_markdown, default_text, row
from policies.schema import FieldDoc

_HEAD = """\
# Scenario reference

Made from the models by `python -m chaos.reference`; a test keeps it in step. How to write a scenario is in
[chaos.md](../chaos.md). Durations are written `250ms`, `2s`, `1m30s`.
"""

_AIMS = {
    TargetKind.ENGINES: "engines",
    TargetKind.PROXIES: "Envoys",
    TargetKind.ZONES: "a zone: its engines and its Envoys",
    TargetKind.CONTROL_PLANE: "the control plane",
    TargetKind.CLIENTS: "callers",
}


def reference_markdown() -> str:
    """All of it."""
    return "\n".join((_HEAD, *_fields(), *_faults(), *_library(), *_exports(), *_codes())) + "\n"


def _table(fields: Iterator[FieldDoc], prefix: str = "") -> Iterator[str]:
    yield row("field", "default", "takes", "what it is")
    yield "|---|---|---|---|"
    for one in fields:
        path = one.path.removeprefix(prefix)
        why = f" *Why: {one.why}.*" if one.why else ""
        unit = f" {one.unit}" if one.unit not in {"", "duration"} else ""
        name = f"**{path}**" if one.block else f"`{path}`"
        yield row(name, default_text(one), f"{one.allowed}{unit}", f"{one.description}{why}")


def _fields() -> Iterator[str]:
    yield "## Fields\n"
    below = f"{FAULT}."
    yield from _table(one for path, one in scenario_fields().items() if not path.startswith(below))


def _faults() -> Iterator[str]:
    yield "\n## Faults\n"
    yield "What `fault` may be. Where one breaks engines, checks count them as better left alone while it lasts.\n"
    for kind, model in fault_kinds().items():
        yield from _fault(kind, model)


def _fault(kind: str, model: type[Fault]) -> Iterator[str]:
    yield f"### {kind}\n"
    story = " ".join((model.__doc__ or "").split()).replace("``", "`")
    yield f"{story}\n"
    breaks = "; breaks them" if model.breaks and model.aim is TargetKind.ENGINES else ""
    yield f"Hits {_AIMS[model.aim]}{breaks}." + (f" In life: {model.incident}\n" if model.incident else "\n")
    below = f"{FAULT}.{kind}."
    settings = [
        one for path, one in scenario_fields().items() if path.startswith(below) and path != f"{below}kind"
    ]
    if settings:
        yield from _table(iter(settings), below)
        yield ""


def _library() -> Iterator[str]:
    yield "\n## Library\n"
    yield "In `chaos/scenarios/`. The suite `full` is all of them, `standard` the usual incidents, and `quick` is"
    yield "one that has several of them in half a minute.\n"
    yield row("scenario", "what happens", "load", "lasts", "faults")
    yield "|---|---|---|---|---|"
    for one in scenario_library().values():
        yield row(*_cells(one))


def _cells(one: LoadedScenario) -> Iterator[str]:
    spec, experiment = one.scenario.spec, one.experiment()
    suite = f" (`{scenarios_labelled(one)}`)" if scenarios_labelled(one) else ""
    yield f"`{one.name}`{suite}"
    yield spec.title
    yield f"{experiment.rate_per_s:.0f}/s, {spec.load.percent:g} %"
    yield f"{spec.lasts:g} s"
    yield ", ".join(dict.fromkeys(f"`{strike.fault.kind}`" for strike in spec.faults))


def _exports() -> Iterator[str]:
    yield "\n## In clusters\n"
    yield "What `switchgear-chaos export` makes of each fault, or why nothing; where a manifest does something"
    yield "a little different, it says so in its first lines.\n"
    yield row("fault", "Chaos Mesh", "Litmus")
    yield "|---|---|---|"
    for kind, model in fault_kinds().items():
        in_litmus = why_not_in_litmus(model)
        if model.not_in_clusters:
            yield row(f"`{kind}`", f"no: {model.not_in_clusters}", "the same")
        else:
            yield row(f"`{kind}`", "yes", f"no: {in_litmus}" if in_litmus else "yes")


def _codes() -> Iterator[str]:
    yield "\n## Codes\n"
    yield "What is wrong with a file or its shape has the codes of policies ([codes.md](../codes.md))."
    for one in SCENARIO_CODES.values():
        yield code_markdown(one).rstrip("\n")


if __name__ == "__main__":
    print(reference_markdown(), end="")  # noqa: T201 - the text is the answer
