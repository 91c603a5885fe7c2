"""One parsed document to a model, or to everything that is wrong with it, said in its author's words.

Nothing here knows of policies: a ``Vocabulary`` says which kinds of documents belong in the file.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from policies.document import API_VERSION, Spec
from policies.findings import Problem, did_you_mean, format_value
from policies.origin import Places, Step, nearest, path_text, start
from policies.quantity import format_duration
from policies.schema import FieldDoc, field_at, fields_of, names_at
from policies.yaml_text import MAX_PROBLEMS, RawDocument, Value

Steps: TypeAlias = tuple[Step, ...]

_YAML_1_1_BOOLEANS: Final = {
    **dict.fromkeys(("yes", "on", "y"), "true"),
    **dict.fromkeys(("no", "off", "n"), "false"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The kinds of documents that belong in one sort of file.

    ``noun`` is what one of them is called, ``elsewhere`` what to do with documents of kinds that belong in others.
    """

    noun: str
    kinds: Mapping[str, type[Spec]]
    elsewhere: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """What came of one document. ``kind`` is empty where it does not say one; ``model`` is None, and ``problems``
    are not empty, where anything is wrong.
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
            message=f"a {vocabulary.noun} is a block of fields",
            found=format_value(raw.value),
            allowed="apiVersion, kind, metadata, spec",
            hint="a document begins with `apiVersion:`; is there a stray --- or a dash in front?",
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
        wrong = (*heading, *_problems(vocabulary, sort, error, raw.value, raw.places))
        return ValidationResult(kind=kind, model=None, problems=wrong)
    return ValidationResult(kind=kind, model=None if heading else model, problems=heading)


def _heading(vocabulary: Vocabulary, value: dict[str, Value], places: Places) -> Iterator[Problem]:
    """What is wrong with apiVersion and kind: without them nothing else can be judged."""
    for name, code, known in (
        ("apiVersion", "SG021", (API_VERSION,)),
        ("kind", "SG022", tuple(vocabulary.kinds)),
    ):
        said = value.get(name)
        if said in known:
            continue
        allowed = known[0] if len(known) == 1 else "one of " + ", ".join(known)
        if name in value:
            guess = did_you_mean(said, known) if isinstance(said, str) else ""
            message = f"{format_value(said)} is no {name} of Switchgear's"
            at = nearest(places, (name,))
        else:
            near = next((one for one in value if did_you_mean(one, (name,))), "")
            guess = f"{near} is spelled {name}" if near else f"begin the document with `{name}: {known[0]}`"
            message = f"the document does not say its {name}"
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
    return "documents of others belong in another folder" if foreign else f"write {field}: {known}"


def _problems(
    vocabulary: Vocabulary, model: type[Spec], error: ValidationError, value: Value, places: Places
) -> Iterator[Problem]:
    said = 0
    for detail in error.errors(include_url=False):
        if said > MAX_PROBLEMS:
            return  # enough to know that there are more than will be shown; guessing what was meant takes time
        steps = _steps(detail["loc"])
        if detail["type"] != "missing" and not _written(value, _written_steps(model, steps)):
            continue  # about a value that was made up from another one, which has a problem of its own
        if steps in {("apiVersion",), ("kind",)}:
            continue  # said by the heading
        if detail["type"] == "too_short" and detail["input"]:
            continue  # about a list that is empty only without its items that have problems of their own
        said += 1
        yield _problem(vocabulary, model, detail, steps, places)


def _steps(location: tuple[Step, ...]) -> Steps:
    # Pydantic marks a wrong key of a mapping with a last step "[key]".
    return location[:-1] if location and location[-1] == "[key]" else location


def _written_steps(model: type[Spec], steps: Steps) -> Steps:
    """The steps as they stand in the file: without those that only say which of several blocks one is."""
    told = [place for place in range(1, len(steps)) if (doc := field_at(model, steps[:place])) and doc.told_by]
    return tuple(step for place, step in enumerate(steps) if place not in told)


def _written(value: Value, steps: Steps) -> bool:
    for step in steps:
        match value, step:
            case dict(), str() if step in value:
                value = value[step]
            case list(), int() if step < len(value):
                value = value[step]
            case _:
                return False
    return True


def _problem(
    vocabulary: Vocabulary, model: type[Spec], detail: ErrorDetails, steps: Steps, places: Places
) -> Problem:
    """What pydantic saw, in the operator's words."""
    written = _written_steps(model, steps)
    path, found, sort = path_text(written), format_value(detail["input"]), detail["type"]
    known = field_at(model, steps)
    allowed = known.allowed if known is not None else ""
    at = nearest(places, written)
    match sort:
        case _ if known is not None and known.told_by:
            return _untold(detail, known, written, places)
        case "extra_forbidden":
            name, names = str(steps[-1]), names_at(model, steps[:-1])
            return Problem(
                code="SG023",
                at=nearest(places, written, key=True),
                path=path,
                message=f"there is no field {format_value(name)} here",
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
            message, _, hint = reason.partition(": ")
            code = "SG027" if known is not None and known.unit == "duration" else "SG026"
            return Problem(code=code, at=at, path=path, message=message, found=found, allowed=allowed, hint=hint)
        case _ if sort.endswith(("_type", "_parsing", "_from_float")):
            message = f"{found} is not {_noun(sort)}"
            hint = _block_hint(model, steps, detail["input"], allowed) or _type_hint(sort, detail["input"])
            return Problem(
                code="SG025", at=at, path=path, message=message, found=found, allowed=allowed, hint=hint
            )
        case _:
            if known is not None and known.unit == "duration" and isinstance(detail["input"], float):
                found = format_duration(detail["input"])  # it was understood, and is seconds by now
            message = _limit(detail, found)
            choices = re.findall(r"'([^']+)'", str(detail.get("ctx", {}).get("expected", "")))
            hint = did_you_mean(detail["input"], choices) if isinstance(detail["input"], str) else ""
            return Problem(
                code="SG026", at=at, path=path, message=message, found=found, allowed=allowed, hint=hint
            )


def _untold(detail: ErrorDetails, known: FieldDoc, steps: Steps, places: Places) -> Problem:
    """A block that may be one of several and does not say which, or names none of them."""
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
            message=f"{format_value(said)} is not one of the values allowed",
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
    """Where a field of this name does belong, when there is exactly such a place."""
    models = (model, *vocabulary.kinds.values())
    homes = [(one, path) for one in models for path in fields_of(one) if path.rpartition(".")[2] == name]
    return f"it belongs to {homes[0][1]} of {homes[0][0].__name__}" if homes else ""


def _noun(sort: str) -> str:
    nouns = {
        "string": "text", "int": "a whole number", "float": "a number", "finite_number": "a number",
        "bool": "true or false", "tuple": "a list", "list": "a list", "dict": "a block of names and text",
        "model": "a block of fields",
    }  # fmt: skip
    return next((noun for prefix, noun in nouns.items() if sort.startswith(prefix)), "what belongs here")


def _block_hint(model: type[Spec], steps: Steps, value: object, allowed: str) -> str:
    """For a bare name where a list of blocks, or one of them, belongs: the name in a block."""
    if allowed != "a list of blocks" or not isinstance(value, str) or not re.fullmatch(r"[\w.-]+", value):
        return ""
    item = steps if isinstance(steps[-1], int) else (*steps, 0)
    block = f"{{{names_at(model, item)[0]}: {value}}}"
    return f"write {block}" if item == steps else f"write a list: [{block}]"


def _type_hint(sort: str, value: object) -> str:  # noqa: PLR0911 - one line per kind of slip
    if value is None:
        return "write a value, or remove the line to have the default"
    if sort.startswith("string"):
        return f'write it in quotes: "{format_value(value)}"' if isinstance(value, (bool, int, float)) else ""
    if not isinstance(value, str):
        return "begin each item with a dash" if sort.startswith(("tuple", "list")) else ""
    if sort.startswith("bool"):
        meant = _YAML_1_1_BOOLEANS.get(value.lower(), value.lower() if value.lower() in {"true", "false"} else "")
        return f"write {meant}, without quotes" if meant else ""
    if sort.startswith(("tuple", "list")):
        return f"write a list: [{value}]"
    digits = value.replace("_", "").replace(",", "").strip()
    if sort.startswith(("int", "float")) and digits.lstrip("+-").replace(".", "", 1).isdecimal():
        number = digits.lstrip("0") or "0"
        return f"write {number}, without quotes, leading zeros or separators"
    return ""


def _limit(detail: ErrorDetails, found: str) -> str:  # noqa: PLR0911 - one line per kind of limit
    context: dict[str, Any] = detail.get("ctx", {})
    match detail["type"]:
        case "greater_than_equal" | "greater_than":
            return f"{found} is too small"
        case "less_than_equal" | "less_than":
            return f"{found} is too large"
        case "too_long":
            return f"{context.get('actual_length')} are too many; at most {context.get('max_length')} are allowed"
        case "too_short" | "string_too_short":
            return "this may not be empty"
        case "string_too_long":
            return f"longer than {context.get('max_length')} characters"
        case "string_pattern_mismatch":
            return f"{found} is not written as it must be"
        case "finite_number":
            return f"{found} is not a number to calculate with"
        case _:
            return f"{found} is not one of the values allowed"
