"""One parsed document to a model, or to everything that is wrong with it, said in the operator's words."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from policies.document import API_VERSION
from policies.findings import Problem, did_you_mean, shown
from policies.model import KINDS, Document
from policies.origin import Places, Spot, Step, nearest, path_text, start
from policies.schema import field_at, fields, names_at
from policies.yaml_text import MAX_PROBLEMS, RawDocument, Value

Steps: TypeAlias = tuple[Step, ...]

_YAML_1_1_BOOLEANS: Final = {
    **dict.fromkeys(("yes", "on", "y"), "true"),
    **dict.fromkeys(("no", "off", "n"), "false"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A document that says its kind and name. ``model`` is None when the rest of it is wrong.

    ``pools`` are the pools it refers to and where, known even then: a wrong name should not have to wait its turn.
    ``digest`` is a hash of what the document says, whatever its layout and comments.
    """

    kind: str
    name: str
    model: Document | None
    places: Places
    digest: str
    pools: tuple[tuple[Steps, str], ...] = ()

    @property
    def key(self) -> str:
        """``Kind/name``."""
        return f"{self.kind}/{self.name}"

    def at(self, *steps: Step, key: bool = False) -> Spot:
        """Where a field of the document stands."""
        return nearest(self.places, steps, key=key)


def judge(raw: RawDocument) -> tuple[Judged | None, tuple[Problem, ...]]:
    """The document when it says what it is, and all its problems."""
    at = start(raw.places)
    if not isinstance(raw.value, dict):
        problem = Problem(
            code="SG020",
            at=at,
            message="a policy document is a block of fields",
            found=shown(raw.value),
            allowed="apiVersion, kind, metadata, spec",
            hint="a document begins with `apiVersion:`; is there a stray --- or a dash in front?",
        )
        return None, (problem,)
    heading = tuple(_heading(raw.value, raw.places))
    kind = raw.value.get("kind")
    if any(problem.path == "kind" for problem in heading) or not isinstance(kind, str):
        return None, heading
    text = json.dumps(raw.value)
    model: Document | None = None
    problems = heading
    try:
        model = KINDS[kind].model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        problems += tuple(_problems(kind, error, raw.value, raw.places))
    name = _name(raw.value)
    if name is None:
        return None, problems
    judged = Judged(
        kind=kind,
        name=name,
        model=None if problems else model,
        places=raw.places,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        pools=tuple(_pools(raw.value, {problem.path for problem in problems})),
    )
    return judged, problems


def _pools(value: dict[str, Value], wrong: set[str]) -> Iterator[tuple[Steps, str]]:
    """Pools that a route or a policy refers to, save those whose very name is wrong."""
    spec = value.get("spec")
    if not isinstance(spec, dict):
        return
    listed = spec.get("pools")
    found: list[tuple[Steps, Value]] = [(("spec", "fallback"), spec.get("fallback"))]
    for number, one in enumerate(listed if isinstance(listed, list) else ()):
        steps: Steps = ("spec", "pools", number)
        found.append(((*steps, "pool"), one.get("pool")) if isinstance(one, dict) else (steps, one))
    yield from ((steps, name) for steps, name in found if isinstance(name, str) and path_text(steps) not in wrong)


def _name(value: dict[str, Value]) -> str | None:
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else None


def _heading(value: dict[str, Value], places: Places) -> Iterator[Problem]:
    """What is wrong with apiVersion and kind: without them nothing else can be judged."""
    for field, code, known in (("apiVersion", "SG021", (API_VERSION,)), ("kind", "SG022", tuple(KINDS))):
        said = value.get(field)
        if said in known:
            continue
        allowed = known[0] if len(known) == 1 else "one of " + ", ".join(known)
        if field in value:
            guess = did_you_mean(said, known) if isinstance(said, str) else ""
            message = f"{shown(said)} is no {field} of Switchgear's"
            at = nearest(places, (field,))
        else:
            near = next((name for name in value if did_you_mean(name, (field,))), "")
            guess = f"{near} is spelled {field}" if near else f"begin the document with `{field}: {known[0]}`"
            message = f"the document does not say its {field}"
            at = nearest(places, (near,), key=True) if near else start(places)
        yield Problem(
            code=code,
            at=at,
            path=field,
            message=message,
            found=shown(said),
            allowed=allowed,
            hint=guess or _heading_hint(field, said, known[0]),
        )


def _heading_hint(field: str, said: Value, known: str) -> str:
    foreign = (
        field == "apiVersion" and isinstance(said, str) and not said.startswith(API_VERSION.partition("/")[0])
    )
    return "documents of others belong in another folder" if foreign else f"write {field}: {known}"


def _problems(kind: str, error: ValidationError, value: Value, places: Places) -> Iterator[Problem]:
    said = 0
    for detail in error.errors(include_url=False):
        if said > MAX_PROBLEMS:
            return  # enough to know that there are more than will be shown; guessing what was meant takes time
        steps = _steps(detail["loc"])
        if detail["type"] != "missing" and not _written(value, steps):
            continue  # about a value that was made up from another one, which has a problem of its own
        if steps in {("apiVersion",), ("kind",)}:
            continue  # said by the heading
        if detail["type"] == "too_short" and detail["input"]:
            continue  # about a list that is empty only without its items that have problems of their own
        said += 1
        yield _problem(kind, detail, steps, places)


def _steps(location: tuple[Step, ...]) -> Steps:
    # Pydantic marks a wrong key of a mapping with a last step "[key]".
    return location[:-1] if location and location[-1] == "[key]" else location


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


def _problem(kind: str, detail: ErrorDetails, steps: Steps, places: Places) -> Problem:
    """What pydantic saw, in the operator's words."""
    path, found, sort = path_text(steps), shown(detail["input"]), detail["type"]
    known = field_at(kind, steps)
    allowed = known.allowed if known is not None else ""
    at = nearest(places, steps)
    match sort:
        case "extra_forbidden":
            name, names = str(steps[-1]), names_at(kind, steps[:-1])
            return Problem(
                code="SG023",
                at=nearest(places, steps, key=True),
                path=path,
                message=f"there is no field {shown(name)} here",
                found=name,
                allowed=", ".join(names),
                hint=did_you_mean(name, names) or _elsewhere(kind, name),
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
            hint = _block_hint(kind, steps, detail["input"], allowed) or _type_hint(sort, detail["input"])
            return Problem(
                code="SG025", at=at, path=path, message=message, found=found, allowed=allowed, hint=hint
            )
        case _:
            message = _limit(detail, found)
            choices = re.findall(r"'([^']+)'", str(detail.get("ctx", {}).get("expected", "")))
            hint = did_you_mean(detail["input"], choices) if isinstance(detail["input"], str) else ""
            return Problem(
                code="SG026", at=at, path=path, message=message, found=found, allowed=allowed, hint=hint
            )


def _elsewhere(kind: str, name: str) -> str:
    """Where a field of this name does belong, when there is exactly such a place."""
    homes = [f"{one}:{path}" for one in (kind, *KINDS) for path in fields(one) if path.rpartition(".")[2] == name]
    return f"it belongs to {homes[0].partition(':')[2]} of {homes[0].partition(':')[0]}" if homes else ""


def _noun(sort: str) -> str:
    nouns = {
        "string": "text", "int": "a whole number", "float": "a number", "finite_number": "a number",
        "bool": "true or false", "tuple": "a list", "list": "a list", "dict": "a block of names and text",
        "model": "a block of fields",
    }  # fmt: skip
    return next((noun for prefix, noun in nouns.items() if sort.startswith(prefix)), "what belongs here")


def _block_hint(kind: str, steps: Steps, value: object, allowed: str) -> str:
    """For a bare name where a list of blocks, or one of them, belongs: the name in a block."""
    if allowed != "a list of blocks" or not isinstance(value, str) or not re.fullmatch(r"[\w.-]+", value):
        return ""
    item = steps if isinstance(steps[-1], int) else (*steps, 0)
    block = f"{{{names_at(kind, item)[0]}: {value}}}"
    return f"write {block}" if item == steps else f"write a list: [{block}]"


def _type_hint(sort: str, value: object) -> str:  # noqa: PLR0911 - one line per kind of slip
    if value is None:
        return "write a value, or remove the line to have the default"
    if sort.startswith("string"):
        return f'write it in quotes: "{shown(value)}"' if isinstance(value, (bool, int, float)) else ""
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
