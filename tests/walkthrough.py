"""An executable page: its console blocks and their expected output.

In a block, a line that begins with ``$ `` is a command (continued by ``> ``), and the lines up to the next one are
its output, where ``...`` stands for any text, on any number of lines. Before a block, ``<!-- until -->`` repeats
the command until it prints this output.

``sh`` blocks are for copying and say nothing of what is printed. They are typed as well, but where
``<!-- not typed: REASON -->`` stands before one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_BLOCK: Final = re.compile(
    r"^(?P<until><!-- until -->\n)?```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)

_COPIED: Final = re.compile(
    r"^(?:<!-- not typed: (?P<reason>[^\n]+) -->\n)?```sh\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)

_KLOG: Final = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+\.go:\d+\] .*\n?", re.MULTILINE)
"""kubectl's klog lines, as when a watch ends within an event; not output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of a page, with the line it stands in. ``until``: what it prints may come true later."""

    line: int
    command: str
    printed: str
    until: bool

    def shown_by(self, output: str) -> bool:
        """Whether an output is what the page says. How much space there is between words does not count."""
        parts = [" ".join(part.split()) for part in self.printed.split("...")]
        text = " ".join(_KLOG.sub("", output).split())
        if len(parts) == 1:
            return text == parts[0]
        # The first place of each part is enough: a pattern of many gaps takes minutes on a page that differs.
        at = len(parts[0])
        if not text.startswith(parts[0]):
            return False
        for part in parts[1:-1]:
            found = text.find(part, at)
            if found < 0:
                return False
            at = found + len(part)
        return len(text) - len(parts[-1]) >= at and text.endswith(parts[-1])


def steps(page: str) -> Iterator[Step]:
    """All commands of a page, in order."""
    for block in _BLOCK.finditer(page):
        first = page.count("\n", 0, block.start("text")) + 1
        at, typed, printed = first, "", list[str]()
        for number, line in enumerate(block["text"].splitlines(), first):
            if line.startswith("$ "):
                if typed:
                    yield Step(line=at, command=typed, printed="\n".join(printed), until=bool(block["until"]))
                at, typed, printed = number, line[2:], []
            elif typed and not printed and (line == ">" or line.startswith("> ")):
                typed += "\n" + line[2:]
            elif typed:
                printed.append(line)
            else:
                msg = f"line {number}: a block begins with what is typed, after `$ `"
                raise ValueError(msg)
        if not typed:
            msg = f"line {first}: nothing is typed in this block"
            raise ValueError(msg)
        yield Step(line=at, command=typed, printed="\n".join(printed), until=bool(block["until"]))


def copied(page: str) -> Iterator[tuple[int, str]]:
    """The commands of a page's ``sh`` blocks that are typed, in order, each with its line."""
    for block in _COPIED.finditer(page):
        if block["reason"]:
            continue
        first = page.count("\n", 0, block.start("text")) + 1
        begun, command = first, ""
        for number, line in enumerate(block["text"].splitlines(), first):
            begun, command = (begun, command + "\n" + line) if command else (number, line)
            if not line.endswith("\\"):
                yield begun, command
                command = ""
