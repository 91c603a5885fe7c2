"""``switchgear schema``."""

import json
from pathlib import Path

import pytest

from policies.model import KINDS
from policies.schema import json_schema
from xds_server.admin_api.api_schema import api_schema
from xds_server.cli import main


def test_the_schema_of_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == json_schema()
    assert [one["$ref"] for one in schema["oneOf"]] == [f"#/$defs/{kind}" for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_of_one_kind(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    assert main(["schema", "--kind", kind]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["kind"]["const"] == kind
    assert schema["required"][:3] == ["apiVersion", "kind", "metadata"]
    assert schema["properties"]["spec"]["description"]


def test_unknown_kind_exits_2_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--kind", "EnginPool"]) == 2
    assert "EnginePool" in capsys.readouterr().err


def test_unwritable_folder_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["schema", "--crd", "--out", str(tmp_path / "file" / "below")]) == 2
    assert "Not a directory" in capsys.readouterr().err


def test_the_schema_of_the_admin_api(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--api"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == api_schema()
    assert document["paths"]["/v1/engines"]["get"]["parameters"][0]["name"] == "pool"


@pytest.mark.parametrize("other", [("--crd",), ("--kind", "EnginePool")])
def test_the_admin_api_stands_alone(other: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--api", *other]) == 2
    assert "--api excludes" in capsys.readouterr().err
