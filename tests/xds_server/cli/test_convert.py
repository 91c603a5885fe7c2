"""``switchgear convert``: to stdout or in place, all files or none."""

import io
from pathlib import Path

import pytest

from policies.document import API_VERSION, NEWEST_API_VERSION
from policies.load import load, load_contents
from xds_server.cli import main

EXAMPLES = Path(__file__).parents[3] / "policies" / "examples"
POOL = f"# why\napiVersion: {API_VERSION}\nkind: EnginePool\nmetadata: {{name: chat}}\nspec: {{model: m}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for one in EXAMPLES.glob("*.yaml"):
        (tmp_path / one.name).write_bytes(one.read_bytes())
    return tmp_path


def test_prints_all_files_as_one_stream(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(POOL.replace("chat", name))
    assert main(["convert", "-f", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert (out.count("# why\n"), err) == (2, "")
    policies = load_contents({Path("out.yaml"): out.encode()})
    assert (sorted(policies.pools), policies.notes) == (["a", "b"], ())
    assert API_VERSION in (tmp_path / "a.yaml").read_text()


def test_reads_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(POOL.encode())))
    assert main(["convert", "-f", "-"]) == 0
    assert capsys.readouterr().out == POOL.replace(API_VERSION, NEWEST_API_VERSION)
    assert main(["convert", "--in-place", "-f", "-"]) == 2


def test_rewrites_in_place_with_permissions_and_through_links(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    before = {one: one.read_text() for one in folder.glob("*.yaml")}
    digest = {one: load([one]).digest for one in before}
    first = min(before)
    first.chmod(0o640)
    kept = folder / "kept"
    first.rename(kept)
    first.symlink_to(kept)
    assert main(["convert", "--in-place", "-f", str(folder)]) == 0
    assert capsys.readouterr().out == "".join(f"{one} converted\n" for one in sorted(before))
    for one, text in before.items():
        assert one.read_text() == text.replace(API_VERSION, NEWEST_API_VERSION)
        assert load([one]).digest == digest[one]
    assert (first.is_symlink(), kept.stat().st_mode & 0o777) == (True, 0o640)
    changed = kept.stat().st_mtime_ns
    assert main(["convert", "--in-place", "-f", str(folder)]) == 0
    assert (capsys.readouterr().out, kept.stat().st_mtime_ns) == ("", changed)
    assert main(["convert", "--in-place", "--output-version", API_VERSION, "-f", str(folder)]) == 0
    assert {one: one.read_text() for one in before} == before


def test_one_bad_file_stops_all(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "bad.yaml").write_text("a: [")
    assert main(["convert", "--in-place", "-f", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert (out, f"{folder / 'bad.yaml'}:" in err, "SG011" in err) == ("", True, True)
    assert all(NEWEST_API_VERSION not in one.read_text() for one in folder.glob("*.yaml"))
    assert main(["convert", "-f", str(folder / "missing")]) == 2
