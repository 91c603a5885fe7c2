"""No function takes more than eight parameters: values that belong together are passed as one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("policies", "engine", "xds_server", "istio", "chaos", "benchmarks")
MOST = 8


def functions(body: ast.AST, path: str = "") -> Iterator[tuple[str, int]]:
    """The qualified name of each function, and how many parameters it takes; ``self`` does not count."""
    for node in ast.iter_child_nodes(body):
        name = f"{path}.{node.name}".lstrip(".") if isinstance(node, _NAMED) else path
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_click_command(node):
            count = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
            yield name, count - (isinstance(body, ast.ClassDef) and not _has(node, "staticmethod"))
        yield from functions(node, name)


_NAMED = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _has(node: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> bool:
    return any(ast.unparse(one).partition("(")[0] == decorator for one in node.decorator_list)


def _is_click_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Click passes each flag of a command as a parameter."""
    return _has(node, "click.command")


def too_many(source: str) -> list[str]:
    return [name for name, count in functions(ast.parse(source)) if count > MOST]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(a, b, c, d, e, f, g, h): ...", []),
        ("def f(a, b, c, d, /, e, f, *, g, h, i): ...", ["f"]),
        ("class A:\n    def f(self, a, b, c, d, e, f, g, h): ...", []),
        ("class A:\n    @staticmethod\n    def f(a, b, c, d, e, f, g, h, i): ...", ["A.f"]),
        ("def g():\n    async def f(a, b, c, d, e, f, g, h, i): ...", ["g.f"]),
        ("@click.command()\n@click.option('--a')\ndef f(a, b, c, d, e, f, g, h, i): ...", []),
    ],
)
def test_parameters_are_counted(source: str, found: list[str]) -> None:
    assert too_many(source) == found


def test_no_function_takes_more_than_eight_parameters() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in too_many(path.read_text())
    }
    assert not found, f"pass a value instead: {sorted(found)}"
