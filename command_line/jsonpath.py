r"""kubectl's JSONPath templates: ``{range .items[*]}{.name}{"\t"}{.state}{"\n"}{end}``.

Packages for RFC 9535 do not read kubectl's own forms: templates with text, ``range``, keys with a dash or an
escaped dot, paths without ``$``. So this is a small strict parser of that dialect. A path that matches nothing
gives nothing, as in ``kubectl get``. Source: kubernetes.io/docs/reference/kubectl/jsonpath.
"""

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

_KEY: Final = re.compile(r"(?:\\.|[^\s.\[\](){}'\"\\,=<>!|&])+")
_SLICE: Final = re.compile(r"(-?\d*):(-?\d*)(?::(-?\d*))?")
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?(?![\w.])")
_OPERATOR: Final = re.compile(r"==|!=|<=|>=|<|>")
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = MappingProxyType(
    {
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}
_WORDS: Final = {"true": True, "false": False, "null": None}


class JsonPathError(ValueError):
    """The expression cannot be used; the message says where and why."""


Step: TypeAlias = Callable[[Any, Any], Iterator[Any]]
"""Values found from one value; the second argument is the document."""


@dataclass(frozen=True, slots=True)
class Path:
    """A path. ``from_root``: it starts at the document (``$``), not at the current value."""

    from_root: bool
    steps: tuple[Step, ...]

    def find(self, value: Any, root: Any) -> list[Any]:
        """Every match, in document order."""
        found = [root if self.from_root else value]
        for step in self.steps:
            found = [match for one in found for match in step(one, root)]
        return found


@dataclass(frozen=True, slots=True)
class _Text:
    text: str


@dataclass(frozen=True, slots=True)
class _Range:
    path: Path
    parts: "tuple[_Part, ...]"


_Part: TypeAlias = "_Text | Path | _Range"


@dataclass(frozen=True, slots=True)
class Template:
    """Text with expressions in braces."""

    parts: tuple[_Part, ...]

    def render(self, document: Any) -> str:
        """The text for this document; several matches of one path are separated by a blank."""
        return "".join(_rendered(self.parts, document, document))


def _rendered(parts: Sequence[_Part], value: Any, root: Any) -> Iterator[str]:
    for part in parts:
        if isinstance(part, _Text):
            yield part.text
        elif isinstance(part, Path):
            yield " ".join(map(scalar_text, part.find(value, root)))
        else:
            for one in part.path.find(value, root):
                yield from _rendered(part.parts, one, root)


def scalar_text(value: Any) -> str:
    """A string as it is, anything else as JSON on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def parse_template(text: str) -> Template:
    """The template; ``JsonPathError`` where it is malformed. A path without braces is read as one expression."""
    if "{" not in text and text[:1] in (".", "$", "["):
        text = f"{{{text}}}"
    return _TemplateParser(text).template()


def parse_path(text: str) -> Path:
    """One path, with or without braces, ``$`` or the first dot, as ``custom-columns`` takes it."""
    bare = text.strip()
    if bare.startswith("{") and bare.endswith("}"):
        bare = bare[1:-1].strip()
    if not bare:
        raise JsonPathError("empty path")
    if bare[0] not in ".$@[":
        bare = f".{bare}"
    parser = _Parser(bare)
    path = parser.path()
    parser.expect_end()
    return path


class _Parser:
    """A cursor over the text of one or more expressions."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, problem: str) -> JsonPathError:
        return JsonPathError(f"{self.text!r}, column {self.at + 1}: {problem}")

    def peek(self, token: str) -> bool:
        return self.text.startswith(token, self.at)

    def take(self, token: str) -> bool:
        if not self.peek(token):
            return False
        self.at += len(token)
        return True

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise self.fail(f"expected {token!r}")

    def expect_end(self) -> None:
        if self.at < len(self.text):
            raise self.fail(f"unexpected {self.text[self.at]!r}")

    def blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def path(self) -> Path:
        """``$``, ``@`` or nothing, then steps."""
        from_root = self.take("$")
        if not from_root and not self.take("@") and not (self.peek(".") or self.peek("[")):
            raise self.fail("a path starts with '.', '[', '$' or '@'")
        steps: list[Step] = []
        while True:
            if self.take(".."):
                steps.append(_descend)
                if not self.peek("["):
                    steps.append(self._key())
            elif self.peek(".[") or (not steps and self.peek(".") and self._is_bare_dot()):
                self.at += 1
            elif self.take("."):
                steps.append(self._key())
            elif self.take("["):
                steps.append(self._brackets())
            else:
                return Path(from_root, tuple(steps))

    def _is_bare_dot(self) -> bool:
        """``{.}`` is the current value."""
        rest = self.text[self.at + 1 : self.at + 2]
        return rest in ("", "}", ")", " ")

    def _key(self) -> Step:
        if self.take("*"):
            return _every
        found = self.match(_KEY)
        if not found:
            raise self.fail("expected a key after '.'")
        return _child(re.sub(r"\\(.)", r"\1", found.group()))

    def _brackets(self) -> Step:
        self.blanks()
        if self.take("?"):
            step = self._filter()
        elif self.take("*"):
            step = _every
        else:
            choices = [self._choice()]
            self.blanks()
            while self.take(","):
                self.blanks()
                choices.append(self._choice())
                self.blanks()
            step = choices[0] if len(choices) == 1 else _union(choices)
        self.blanks()
        self.expect("]")
        return step

    def _choice(self) -> Step:
        if self.peek("'") or self.peek('"'):
            return _child(self.string())
        bounds = self.match(_SLICE)
        if bounds:
            first, last, stride = (int(one) if one and one != "-" else None for one in bounds.groups())
            if stride == 0:
                raise self.fail("the stride of a slice is not 0")
            return _slice(slice(first, last, stride))
        number = self.match(_NUMBER)
        if not number or not number.group().lstrip("-").isdecimal():
            raise self.fail("expected an index, a slice, a quoted key, '*' or '?(...)'")
        return _index(int(number.group()))

    def _filter(self) -> Step:
        self.expect("(")
        self.blanks()
        left = self._operand()
        self.blanks()
        found = self.match(_OPERATOR)
        right = None
        if found:
            self.blanks()
            right = self._operand()
        elif not isinstance(left, Path):
            raise self.fail("expected one of == != < <= > >=")
        self.blanks()
        if self.peek("&&") or self.peek("||"):
            raise self.fail("a filter is one comparison; put a second one in brackets of its own")
        self.expect(")")
        if found is None:
            return _where(lambda value, root: bool(left.find(value, root)) if isinstance(left, Path) else False)
        return _where(_comparison(left, _COMPARE[found.group()], right))

    def _operand(self) -> Any:
        if self.peek("'") or self.peek('"'):
            return self.string()
        number = self.match(_NUMBER)
        if number:
            return json.loads(number.group())
        for word, value in _WORDS.items():
            if self.take(word):
                return value
        return self.path()

    def string(self) -> str:
        """A string in single or double quotes, with ``\\n``, ``\\t`` and escaped quotes."""
        quote = self.text[self.at]
        text: list[str] = []
        self.at += 1
        while self.at < len(self.text):
            one = self.text[self.at]
            self.at += 1
            if one == quote:
                return "".join(text)
            if one == "\\" and self.at < len(self.text):
                one = _ESCAPES.get(self.text[self.at], self.text[self.at])
                self.at += 1
            text.append(one)
        raise self.fail(f"the quote {quote} is not closed")


class _TemplateParser(_Parser):
    """Text, and expressions in braces."""

    def template(self) -> Template:
        parts, ended = self._parts()
        if ended:
            raise self.fail("{end} without {range}")
        return Template(tuple(parts))

    def _parts(self) -> tuple[list[_Part], bool]:
        """Parts up to the end of the text or ``{end}``, and whether that was it."""
        parts: list[_Part] = []
        while self.at < len(self.text):
            brace = self.text.find("{", self.at)
            if brace != self.at:
                stop = len(self.text) if brace < 0 else brace
                parts.append(_Text(self.text[self.at : stop]))
                self.at = stop
                continue
            self.at += 1
            self.blanks()
            if self.take("end"):
                self._close()
                return parts, True
            if self.peek("range ") or self.peek("range\t"):
                self.at += len("range ")
                parts.append(self._range())
                continue
            if self.at >= len(self.text):
                raise self.fail("the brace { is not closed")
            parts.append(_Text(self.string()) if self.text[self.at] in "'\"" else self.path())
            self._close()
        return parts, False

    def _range(self) -> _Range:
        self.blanks()
        path = self.path()
        self._close()
        parts, ended = self._parts()
        if not ended:
            raise self.fail("{range} without {end}")
        return _Range(path, tuple(parts))

    def _close(self) -> None:
        self.blanks()
        if self.at >= len(self.text):
            raise self.fail("the brace { is not closed")
        self.expect("}")


def _comparison(left: Any, compare: Callable[[Any, Any], bool], right: Any) -> Callable[[Any, Any], bool]:
    def holds(value: Any, root: Any) -> bool:
        lefts = left.find(value, root) if isinstance(left, Path) else [left]
        rights = right.find(value, root) if isinstance(right, Path) else [right]
        return any(_holds(compare, one, other) for one in lefts for other in rights)

    return holds


def _holds(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> bool:
    """Values of different kinds are unequal, and neither is less."""
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (left, right))
    if numbers or type(left) is type(right):
        try:
            return compare(left, right)
        except TypeError:
            return False
    return compare is operator.ne


def _child(key: str) -> Step:
    def step(value: Any, _root: Any) -> Iterator[Any]:
        if isinstance(value, Mapping) and key in value:
            yield value[key]

    return step


def _index(number: int) -> Step:
    def step(value: Any, _root: Any) -> Iterator[Any]:
        if _is_list(value) and -len(value) <= number < len(value):
            yield value[number]

    return step


def _slice(part: slice) -> Step:
    def step(value: Any, _root: Any) -> Iterator[Any]:
        if _is_list(value):
            yield from value[part]

    return step


def _union(choices: Sequence[Step]) -> Step:
    def step(value: Any, root: Any) -> Iterator[Any]:
        for choice in choices:
            yield from choice(value, root)

    return step


def _where(holds: Callable[[Any, Any], bool]) -> Step:
    def step(value: Any, root: Any) -> Iterator[Any]:
        for one in _every(value, root):
            if holds(one, root):
                yield one

    return step


def _every(value: Any, _root: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif _is_list(value):
        yield from value


def _descend(value: Any, root: Any) -> Iterator[Any]:
    yield value
    for one in _every(value, root):
        yield from _descend(one, root)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
