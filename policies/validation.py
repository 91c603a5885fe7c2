"""Validate one parsed document: a model, or every problem with its place and a fix.

Independent of policies: a ``Vocabulary`` names the kinds of documents that a file may hold.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, NoneType
from typing import Any, Final, TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from policies.document import API_VERSION, API_VERSIONS, Spec
from policies.findings import Problem, did_you_mean, format_value
from policies.hints import replacement
from policies.origin import Places, Step, nearest, path_text, start
from policies.schema import FieldDoc, field_at, fields_of, names_at
from policies.yaml_text import MAX_PROBLEMS, TEMPLATE_HINT, RawDocument, Value

Steps: TypeAlias = tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The kinds of documents that one sort of file may hold.

    ``noun`` names one such document. ``elsewhere`` has a hint for kinds that belong in other files.
    """

    noun: str
    kinds: Mapping[str, type[Spec]]
    elsewhere: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """The outcome for one document.

    ``kind`` is empty where it is missing or unknown; ``model`` is None where there are ``problems``.
    """

    kind: str
    model: Spec | None
    problems: tuple[Problem, ...]


def validate_document(raw: RawDocument, vocabulary: Vocabulary) -> ValidationResult:
    """The document as a model of its kind, or all its problems."""
    if not isinstance(raw.value, dict):
        problem = Problem(
            code="SG020",
            at=start(raw.places),
            message=f"a {vocabulary.noun} must be a block of fields",
            found=format_value(raw.value),
            allowed="apiVersion, kind, metadata, spec",
            hint="begin the document with `apiVersion:`; remove a stray --- or leading dash",
        )
        return ValidationResult(kind="", model=None, problems=(problem,))
    heading = tuple(_heading(vocabulary, raw.value, raw.places))
    kind = raw.value.get("kind")
    if any(problem.path == "kind" for problem in heading) or not isinstance(kind, str):
        return ValidationResult(kind="", model=None, problems=heading)
    sort = vocabulary.kinds[kind]
    try:
        model = sort.model_validate_json(json.dumps(raw.value), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        wrong = (*heading, *_problems(vocabulary, sort, error, raw))
        return ValidationResult(kind=kind, model=None, problems=wrong)
    return ValidationResult(kind=kind, model=None if heading else model, problems=heading)


def _heading(vocabulary: Vocabulary, value: dict[str, Value], places: Places) -> Iterator[Problem]:
    """Problems of apiVersion and kind, without which no other field can be checked."""
    for name, code, known in (
        ("apiVersion", "SG021", API_VERSIONS),
        ("kind", "SG022", tuple(vocabulary.kinds)),
    ):
        said = value.get(name)
        if said in known:
            continue
        allowed = known[0] if len(known) == 1 else "one of " + ", ".join(known)
        if name in value:
            guess = did_you_mean(said, known) if isinstance(said, str) else ""
            message = f"unknown {name} {format_value(said)}"
            at = nearest(places, (name,))
        else:
            near = next((one for one in value if did_you_mean(one, (name,))), "")
            guess = f"write {name} instead of {near}" if near else f"add `{name}: {known[0]}`"
            message = f"{name} is missing"
            at = nearest(places, (near,), key=True) if near else start(places)
        yield Problem(
            code=code,
            at=at,
            path=name,
            message=message,
            found=format_value(said),
            allowed=allowed,
            hint=guess or _heading_hint(vocabulary, name, said, known[0]),
        )


def _heading_hint(vocabulary: Vocabulary, field: str, said: Value, known: str) -> str:
    if field == "kind" and isinstance(said, str) and said in vocabulary.elsewhere:
        return vocabulary.elsewhere[said]
    foreign = (
        field == "apiVersion" and isinstance(said, str) and not said.startswith(API_VERSION.partition("/")[0])
    )
    return "move documents of other tools to another folder" if foreign else f"write {field}: {known}"


def _problems(
    vocabulary: Vocabulary, model: type[Spec], error: ValidationError, raw: RawDocument
) -> Iterator[Problem]:
    reported = 0
    for detail in error.errors(include_url=False):
        if reported > MAX_PROBLEMS:
            return  # hints take time, and no more problems are shown
        steps = _steps(detail["loc"])
        if detail["type"] != "missing" and not _written(raw.value, _written_steps(model, steps)):
            continue  # about a value derived from another one, which has a problem of its own
        if raw.sources.get(nearest(raw.places, steps)) == "{{":
            continue  # a template, reported by the parser
        if steps in {("apiVersion",), ("kind",)}:
            continue  # reported by the heading
        if detail["type"] == "too_short" and detail["input"]:
            continue  # about a list that is empty only because its items have problems
        reported += 1
        yield _problem(vocabulary, model, detail, steps, raw)


def _steps(location: tuple[Step, ...]) -> Steps:
    # Pydantic marks a wrong key of a mapping with a last step "[key]".
    return location[:-1] if location and location[-1] == "[key]" else location


def _written_steps(model: type[Spec], steps: Steps) -> Steps:
    """The steps as written in the file: without those that only tell which of several blocks one is."""
    told = [place for place in range(1, len(steps)) if (doc := field_at(model, steps[:place])) and doc.told_by]
    return tuple(step for place, step in enumerate(steps) if place not in told)


_ABSENT: Final = object()


def _value_at(value: Value, steps: Steps) -> object:
    """The value at these steps of the file; ``_ABSENT`` where there is none."""
    for step in steps:
        match value, step:
            case dict(), str() if step in value:
                value = value[step]
            case list(), int() if step < len(value):
                value = value[step]
            case _:
                return _ABSENT
    return value


def _written(value: Value, steps: Steps) -> bool:
    return _value_at(value, steps) is not _ABSENT


def _problem(
    vocabulary: Vocabulary, model: type[Spec], detail: ErrorDetails, steps: Steps, raw: RawDocument
) -> Problem:
    """What pydantic reports, in the operator's words."""
    written = _written_steps(model, steps)
    value = _value_at(raw.value, written)
    value = detail["input"] if value is _ABSENT else value
    at = nearest(raw.places, written)
    source = raw.sources.get(at) or (value if isinstance(value, str) else format_value(value))
    path, found, sort = path_text(written), format_value(value), detail["type"]
    if not isinstance(value, (str, dict, list, NoneType)):
        found = source
    known = field_at(model, steps)
    allowed = known.allowed if known is not None else ""
    hint = _hint(model, steps, known, value, source)
    match sort:
        case _ if known is not None and known.told_by:
            return _untold(detail, known, written, raw.places)
        case "extra_forbidden":
            name, names = str(steps[-1]), names_at(model, steps[:-1])
            return Problem(
                code="SG023",
                at=nearest(raw.places, written, key=True),
                path=path,
                message=f"unknown field {format_value(name)}",
                found=name,
                allowed=", ".join(names),
                hint=did_you_mean(name, names) or _elsewhere(vocabulary, model, name),
            )
        case "missing":
            return Problem(
                code="SG024",
                at=at,
                path=path,
                message=f"{steps[-1]} is missing",
                found="nothing",
                allowed=allowed,
                hint=known.description if known is not None else "",
            )
        case "value_error":
            context: dict[str, Any] = detail.get("ctx", {})
            reason = str(context["error"])
            message, _, general = reason.partition(": ")
            code = "SG026"
            if known is not None and known.unit == "duration":
                code, message = "SG027", message.replace(repr(value), found, 1)
            return Problem(
                code=code,
                at=at,
                path=path,
                message=message,
                found=found,
                allowed=allowed,
                hint=f"{hint}; {general}" if hint and general and code == "SG026" else hint or general,
            )
        case _ if sort.endswith(("_type", "_parsing", "_from_float")):
            message = f"{found} is not {_noun(sort)}"
            hint = _block_hint(model, steps, value, allowed) or hint or _type_hint(sort, known, value)
            return Problem(
                code="SG025", at=at, path=path, message=message, found=found, allowed=allowed, hint=hint
            )
        case _:
            if known is not None and known.unit == "duration":
                found = source
            message = _limit(detail, found, "name" if allowed.partition("a name:")[1] else "value")
            choices = re.findall(r"'([^']+)'", str(detail.get("ctx", {}).get("expected", "")))
            guess = did_you_mean(value, choices) if isinstance(value, str) else ""
            hint = guess or hint
            return Problem(
                code="SG026", at=at, path=path, message=message, found=found, allowed=allowed, hint=hint
            )


def _untold(detail: ErrorDetails, known: FieldDoc, steps: Steps, places: Places) -> Problem:
    """A block that may be one of several and names none of them."""
    tag, block = known.told_by, detail["input"]
    allowed = known.allowed.partition(" is ")[2]
    choices = allowed.removeprefix("one of ").split(", ")
    if not isinstance(block, dict):
        return Problem(
            code="SG025",
            at=nearest(places, steps),
            path=path_text(steps),
            message=f"{format_value(block)} is not a block of fields",
            found=format_value(block),
            allowed=known.allowed,
            hint=f"write {{{tag}: {block}}}" if block in choices else "",
        )
    steps = (*steps, tag)
    if tag in block:
        said = block[tag]
        return Problem(
            code="SG026",
            at=nearest(places, steps),
            path=path_text(steps),
            message=f"{format_value(said)} is not an allowed value",
            found=format_value(said),
            allowed=allowed,
            hint=did_you_mean(said, choices) if isinstance(said, str) else "",
        )
    return Problem(
        code="SG024",
        at=nearest(places, steps),
        path=path_text(steps),
        message=f"{tag} is missing",
        found="nothing",
        allowed=allowed,
        hint=known.description,
    )


def _elsewhere(vocabulary: Vocabulary, model: type[Spec], name: str) -> str:
    """The block that has a field of this name, if any."""
    models = (model, *vocabulary.kinds.values())
    homes = [(one, path) for one in models for path in fields_of(one) if path.rpartition(".")[2] == name]
    return f"move it to {homes[0][1]} of {homes[0][0].__name__}" if homes else ""


def _noun(sort: str) -> str:
    nouns = {
        "string": "text", "int": "a whole number", "float": "a number", "finite_number": "a number",
        "bool": "true or false", "tuple": "a list", "list": "a list", "dict": "a block of names and text",
        "model": "a block of fields",
    }  # fmt: skip
    return next((noun for prefix, noun in nouns.items() if sort.startswith(prefix)), "of the expected type")


def _block_hint(model: type[Spec], steps: Steps, value: object, allowed: str) -> str:
    """The block for a bare name, where a list of blocks or an item of one is expected."""
    if allowed != "a list of blocks" or not isinstance(value, str) or not re.fullmatch(r"[\w.-]+", value):
        return ""
    item = steps if isinstance(steps[-1], int) else (*steps, 0)
    block = f"{{{names_at(model, item)[0]}: {value}}}"
    return f"write {block}" if item == steps else f"write a list: [{block}]"


def _hint(model: type[Spec], steps: Steps, known: FieldDoc | None, value: object, source: str) -> str:
    if isinstance(value, str) and "{{" in value:
        return TEMPLATE_HINT
    if known is None or isinstance(value, (dict, list, NoneType)):
        return ""
    text = replacement(model, steps, known, value, source)
    if not text:
        return ""
    if known.type == "duration" and source.strip().replace(".", "", 1).isdecimal():
        return f"write {text} or {text[:-1]}ms"
    return f"write {text}" + (", without quotes" if isinstance(value, str) and text == source else "")


def _type_hint(sort: str, known: FieldDoc | None, value: object) -> str:
    if value is None:
        return "write a value" if known and known.required else "write a value, or remove the line for the default"
    if not isinstance(value, str) and sort.startswith(("tuple", "list")):
        return "begin each item with a dash"
    return ""


def _limit(detail: ErrorDetails, found: str, noun: str) -> str:  # noqa: PLR0911 - one line per kind of limit
    context: dict[str, Any] = detail.get("ctx", {})
    match detail["type"]:
        case "greater_than_equal" | "greater_than":
            return f"{found} is too small"
        case "less_than_equal" | "less_than":
            return f"{found} is too large"
        case "too_long":
            return f"{context.get('actual_length')} items; at most {context.get('max_length')} are allowed"
        case "too_short" | "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"longer than {context.get('max_length')} characters"
        case "string_pattern_mismatch":
            return f"invalid {noun} {found}"
        case "finite_number":
            return f"{found} is not a finite number"
        case _:
            return f"{found} is not an allowed value"
