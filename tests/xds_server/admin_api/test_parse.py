"""Parsing of answers from older and newer servers."""

from typing import Any

import pytest

from tests.xds_server.admin_api import rows
from xds_server.admin_api.answers import EngineList, ProblemList
from xds_server.admin_api.parse import ShapeError, parse
from xds_server.admin_api.status_types import EngineStatus, FileProblem, SyncState, TypeStatus


def test_answer_round_trips() -> None:
    engine = rows.engine_status(agent=rows.agent_status(), shunned_by=("n1",))
    assert parse(EngineList, {"engines": [rows.document(engine)]}) == EngineList(engines=(engine,))


def test_unknown_fields_of_a_newer_server_are_ignored() -> None:
    newer = rows.document(rows.engine_status()) | {"moon": "full"}
    assert parse(EngineStatus, newer) == rows.engine_status()
    kind = rows.document(rows.type_status()) | {"state": "PENDING"}
    assert parse(TypeStatus, kind).state == "PENDING"
    assert parse(TypeStatus, kind | {"state": "NACK"}).state is SyncState.NACK
    problem = {"what": "token", "defect": "lost", "file": "/t", "sentence": "why"}
    assert parse(FileProblem, problem).defect == "lost"


def test_missing_fields_of_an_older_server_get_defaults() -> None:
    whole = rows.document(rows.engine_status())
    older = {name: value for name, value in whole.items() if name not in ("shadow", "shunned_by", "standing")}
    assert parse(EngineStatus, older) == rows.engine_status()
    assert parse(ProblemList, {}) == ProblemList()


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], ""),
        (None, ""),
        ({}, "engines"),
        ({"engines": 3}, "engines"),
        ({"engines": [{}]}, "engines.0.pool"),
        ({"engines": [rows.document(rows.engine_status()) | {"port": "none"}]}, "engines.0.port"),
    ],
)
def test_invalid_answer_is_refused_with_its_field(document: Any, field: str) -> None:
    with pytest.raises(ShapeError) as refused:
        parse(EngineList, document)
    assert refused.value.field == field
    assert str(refused.value).startswith("EngineList: ")
