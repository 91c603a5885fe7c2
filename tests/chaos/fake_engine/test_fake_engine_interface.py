"""``docs/chaos/fake-engine.md`` is what people build on: it has every path, flag, fault and field, no other."""

import re
import typing
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from chaos.fake_engine import ControlServer, EngineConfig, FakeEngine
from chaos.fake_engine import __main__ as command
from chaos.fake_engine.call_log import CallRecord, CallTotals
from chaos.fake_engine.engine_faults import EngineFault
from chaos.fake_engine.vllm_routes import application

DOCUMENT = (Path(__file__).parents[3] / "docs/chaos/fake-engine.md").read_text(encoding="utf-8")
KINDS = {kind.__dataclass_fields__["kind"].default: kind for kind in typing.get_args(EngineFault)}


def paths(app) -> set[str]:
    return {
        f"{route.method} {route.resource.canonical}".replace("{engine}", "ENGINE")
        for route in app.router.routes()
        if route.method != "HEAD"
    }


def test_documented_paths_match() -> None:
    engine = FakeEngine(EngineConfig(first_token_gate=True))
    known = paths(application(engine)) | paths(ControlServer([engine]).application())
    described = set(re.findall(r"`((?:GET|PUT|POST|DELETE) /[^`]*)`", DOCUMENT))
    assert described == known


def test_documented_faults_match() -> None:
    assert sorted(re.findall(r"^### `(\w+)`$", DOCUMENT, re.MULTILINE)) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_documented_fault_fields_match(kind: str) -> None:
    section = DOCUMENT.partition(f"### `{kind}`\n")[2].partition("\n#")[0]
    expected = " ".join(section.split()).partition("Fields: ")[2]
    known = {one.name: one.default for one in fields(KINDS[kind]) if one.name != "kind"}
    assert set(re.findall(r"`(\w+)` \(", expected)) == set(known)
    for name, default in known.items():
        if default is not MISSING:
            shown = re.search(rf"`{name}` \(([^);:]*)", expected)
            assert shown is not None
            assert shown[1].strip('`"') == str(default)


def test_documented_flags_match() -> None:
    described = dict(re.findall(r"^\| `--([\w-]+)` \| (\S+) \|", DOCUMENT, re.MULTILINE))
    parser = command._parser()
    known = {
        action.option_strings[-1].removeprefix("--"): action.default
        for action in parser._actions
        if action.dest != "help"
    }
    assert set(described) == set(known)
    for name, default in known.items():
        shown = {"None": "none", "False": "off", "": "none"}.get(str(default), str(default))
        assert described[name].strip("`") == shown


@pytest.mark.parametrize(("book", "heading"), [(CallTotals, "total"), (CallRecord, "field of a call")])
def test_documented_call_log_fields_match(book: type, heading: str) -> None:
    rows = DOCUMENT.partition(f"| {heading} | meaning |\n| --- | --- |\n")[2].partition("\n\n")[0].splitlines()
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    # A call's value is computed on output.
    assert described == {one.name for one in fields(book)} | {"wasted_slot_s"}
