"""Figures of the source tree: reused names, standard terms that have a home, and how rooms import each other.

Each figure is compared with the one before the tree was renamed. Nothing is run: modules are parsed, and imports
come from grimp, which import-linter uses too.
"""

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import grimp
from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("command_line", "policies", "engine", "xds_server", "istio", "chaos", "benchmarks")
CONTROL_PLANE: Final = "xds_server"

STANDARD_TERMS: Final = (
    *("subscription", "leader", "backoff", "rate limit", "authorization", "circuit breaker", "degradation"),
    *("precondition", "audit", "event recorder", "nack", "lease", "snapshot", "outlier detection", "retry budget"),
    *("hedging", "admission", "readiness gate", "token bucket", "canary", "rollback", "config dump", "reflector"),
    *("drain", "ejection"),
)
"""Terms of Envoy, gRPC, Kubernetes and resilience engineering that a newcomer searches for."""

OLD_LIMIT_LINES: Final = range(380, 401)
"""Lengths just below a limit of 400 lines, which the tree once had: such modules were probably cut to fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicName:
    """A name that other modules may use: of a package, module, class, function or method."""

    kind: str
    name: str
    path: str
    """File, and the class of a method, such as ``xds_server/xds/stream.py:Stream``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportShape:
    """How the children of one package import each other."""

    modules: int
    rooms: int
    """Modules and packages directly below the package."""
    floors: int
    """Rooms on the longest path of imports."""
    single_importer: int
    """Modules that exactly one other module imports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFigure:
    """One figure, now and before the renaming; ``target`` is the most (or, for terms, the least) allowed."""

    name: str
    before: int
    now: int
    target: int | None = None
    least: bool = False

    @property
    def missed(self) -> bool:
        """Whether the figure is on the wrong side of its target."""
        if self.target is None:
            return False
        return self.now < self.target if self.least else self.now > self.target


def product_files(root: Path = ROOT) -> Sequence[Path]:
    """Python files of the product, without generated ones, relative to ``root``."""
    files = (file.relative_to(root) for package in PACKAGES for file in (root / package).rglob("*.py"))
    return sorted(file for file in files if not file.name.endswith("_pb2.py"))


def public_names(root: Path = ROOT) -> Sequence[PublicName]:
    """Every public name of the product."""
    found: list[PublicName] = []
    for file in product_files(root):
        name = file.parent.name if file.name == "__init__.py" else file.stem
        if not name.startswith("_"):
            found.append(PublicName(kind="module", name=name, path=str(file)))
        found += _defined(ast.parse((root / file).read_text()).body, str(file))
    return found


def _defined(body: Iterable[ast.stmt], path: str, inside: str = "") -> Iterator[PublicName]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith(
            "_"
        ):
            continue
        if isinstance(node, ast.ClassDef):
            # A class inside a class is named with it.
            yield PublicName(kind="nested class" if inside else "class", name=node.name, path=path)
            yield from _defined(node.body, f"{path}:{node.name}", node.name)
        else:
            yield PublicName(kind="method" if inside else "function", name=node.name, path=path)


def name_parts(name: str) -> tuple[str, ...]:
    """The parts of a name in lower case: rate and limit, of ``RateLimit`` as of ``rate_limit``."""
    return tuple(part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name))


def reused_classes(names: Iterable[PublicName]) -> Mapping[str, Sequence[str]]:
    """Names of public classes that exist more than once, with their files."""
    places: dict[str, list[str]] = {}
    for one in names:
        if one.kind == "class":
            places.setdefault(one.name, []).append(one.path)
    return {name: files for name, files in sorted(places.items()) if len(files) > 1}


def homes(term: str, names: Iterable[PublicName]) -> Sequence[str]:
    """Modules, classes and functions whose name has the words of ``term``, one after the other."""
    sought = tuple(term.split())
    return [
        one.path if one.kind == "module" else f"{one.path}:{one.name}"
        for one in names
        if one.kind != "method"
        and any(name_parts(one.name)[at : at + len(sought)] == sought for at in range(len(one.name)))
    ]


def shared_file_names(root: Path = ROOT) -> Sequence[str]:
    """Modules whose file name another module has too, ``__init__`` and ``__main__`` aside."""
    files = [file for file in product_files(root) if not file.stem.startswith("__")]
    counts = Counter(file.name for file in files)
    return [str(file) for file in files if counts[file.name] > 1]


def modules_near_old_limit(root: Path = ROOT) -> Sequence[str]:
    """Modules of 380 to 400 lines."""
    lengths = ((file, len((root / file).read_text().splitlines())) for file in product_files(root))
    return [str(file) for file, lines in lengths if lines in OLD_LIMIT_LINES]


def import_shape(package: str = CONTROL_PLANE) -> ImportShape:
    """How the rooms of a package stand; the package has to be importable."""
    graph = grimp.build_graph(package, cache_dir=None)
    room_of = {
        module: room for room in graph.find_children(package) for module in (room, *graph.find_descendants(room))
    }
    imports: dict[str, set[str]] = {room: set() for room in room_of.values()}
    for module, room in room_of.items():
        rooms = {room_of[one] for one in graph.find_modules_directly_imported_by(module) if one in room_of}
        imports[room] |= rooms - {room}
    floors: dict[str, int] = {}
    for room in TopologicalSorter(imports).static_order():
        floors[room] = 1 + max((floors[one] for one in imports[room]), default=0)
    importers = (len(graph.find_modules_that_directly_import(module)) for module in graph.modules)
    return ImportShape(
        modules=len(graph.modules),
        rooms=len(imports),
        floors=max(floors.values(), default=0),
        single_importer=sum(count == 1 for count in importers),
    )


def figures(root: Path = ROOT) -> Sequence[TreeFigure]:
    """All figures of the tree at ``root``, with those before it was renamed."""
    names, shape = public_names(root), import_shape()
    found = sum(bool(homes(term, names)) for term in STANDARD_TERMS)
    return (
        TreeFigure(
            name="public class names used more than once", before=145, now=len(reused_classes(names)), target=0
        ),
        TreeFigure(
            name="standard terms that name a file, class or function, of 25",
            before=15,
            now=found,
            target=25,
            least=True,
        ),
        TreeFigure(name="modules that share their file name", before=334, now=len(shared_file_names(root))),
        TreeFigure(name="modules", before=870, now=len(product_files(root))),
        TreeFigure(name="rooms of xds_server", before=38, now=shape.rooms, target=26),
        TreeFigure(name="floors of xds_server", before=14, now=shape.floors),
        TreeFigure(name="modules of xds_server", before=330, now=shape.modules),
        TreeFigure(name="modules of xds_server with exactly one importer", before=127, now=shape.single_importer),
        TreeFigure(name="modules of 380 to 400 lines", before=14, now=len(modules_near_old_limit(root))),
    )


def main(argv: Sequence[str]) -> int:
    """1 when a figure misses its target, with the names that miss it; 0 otherwise."""
    parser = argparse.ArgumentParser(prog="source_tree", description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to measure (default: this one)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there as well")
    options = parser.parse_args(argv)
    # grimp finds packages as the interpreter does.
    sys.path.insert(0, str(options.root.resolve()))
    rows = figures(options.root)
    table = Table("figure", "before", "now", "target", title="the source tree")
    for row in rows:
        target = "" if row.target is None else f"{'at least' if row.least else 'at most'} {row.target}"
        table.add_row(row.name, str(row.before), str(row.now), target)
    console = Console()
    console.print(table)
    names = public_names(options.root)
    for name, files in reused_classes(names).items():
        console.print(f"class {name}: {', '.join(files)}")
    for term in STANDARD_TERMS:
        if not homes(term, names):
            console.print(f"no home: {term}")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))
    return int(any(row.missed for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
