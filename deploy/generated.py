"""The list of generated files: reference pages, CRDs, manifests, rules, dashboards, results, protobuf code.

python -m deploy.generated            rewrites; `make generated`
python -m deploy.generated --check    lists stale files without writing; part of `make check`

Golden files and pictures are not listed: tests write them, and a reviewer checks the difference.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from chaos.command_reference import commands_markdown
from chaos.reference import reference_markdown
from deploy import compatibility, licences, render
from istio.export.fidelity_tables import BEGIN, END, fidelity_tables
from policies.codes import REMARKS
from policies.crd.crd import PLURALS
from policies.reference import codes_markdown, defaults_yaml, policies_markdown
from xds_server.admin_api.api_schema import api_markdown
from xds_server.cli.schema import definition

ROOT: Final = Path(__file__).resolve().parents[1]
PROTO: Final = Path("engine/proto/engine_report.proto")

LOCKED_PYTHON: Final = (3, 11)
"""Version requirements.lock is made with; later versions need fewer packages."""

Files = Mapping[Path, str]
"""Text by path."""


def reference_pages() -> Files:
    """Files generated from models, codes, scenarios and commands."""
    pages = {
        "policies/default.yaml": defaults_yaml,
        "docs/policies.md": policies_markdown,
        "docs/codes.md": codes_markdown,
        "docs/cli.md": commands_markdown,
        "docs/admin-api.md": api_markdown,
        "docs/chaos/reference.md": reference_markdown,
        "xds_server/admin/dashboard/page/guide.json": guide_json,
    }
    return {ROOT / path: text() for path, text in pages.items()}


def guide_json() -> str:
    """What the dashboard shows of each condition: its code, and the page of its runbook."""
    known = [one for one in REMARKS.values() if one.severity]
    codes = {
        one.code: {
            "title": one.title,
            "severity": one.severity,
            "meaning": one.meaning,
            "fix": one.fix,
            "runbook": one.runbook,
        }
        for one in known
    }
    pages = {
        name: ROOT / "docs" / "runbooks" / f"{name}.md" for name in sorted({one.runbook for one in known} - {""})
    }
    runbooks = {name: path.read_text(encoding="utf-8").partition("\n\n")[2] for name, path in pages.items()}
    return json.dumps({"codes": codes, "runbooks": runbooks}, ensure_ascii=False, indent=1) + "\n"


def istio_tables() -> Files:
    """docs/istio.md with generated tables."""
    path = ROOT / "docs" / "istio.md"
    page = path.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    return {path: f"{before}{fidelity_tables().rstrip()}{after}"}


def crds() -> Files:
    """Custom resource definitions, generated from the models."""
    return {ROOT / "deploy" / "crds" / f"{plural}.yaml": definition(kind) for kind, plural in PLURALS.items()}


def chart() -> Files:
    """Copies in the chart, rendered manifests, and files generated from the metric table."""
    copies = {render.CHART / "crds" / path.name: text for path, text in crds().items()}
    return {**render.generated_files(), **copies}


def licence_page() -> Files:
    """Licence page of runtime dependencies; only generated with Python ``LOCKED_PYTHON``."""
    if sys.version_info[:2] != LOCKED_PYTHON:
        return {}
    return {licences.PAGE: licences.page()}


def compatibility_page() -> Files:
    """Results of tests with each version of other products."""
    return {compatibility.PAGE: compatibility.page(compatibility.known_results())}


def proto_code() -> Files:
    """Code that protoc generates from the report format."""
    with tempfile.TemporaryDirectory(prefix="switchgear-proto-") as folder:
        out = [f"--python_out={folder}", f"--pyi_out={folder}"]
        subprocess.run(  # noqa: S603 -- our own interpreter
            [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *out, str(PROTO)], cwd=ROOT, check=True
        )
        return {ROOT / file.relative_to(folder): file.read_text() for file in Path(folder).rglob("*_pb2.py*")}


GENERATORS: Final[Sequence[Callable[[], Files]]] = (
    reference_pages,
    istio_tables,
    crds,
    chart,
    licence_page,
    compatibility_page,
    proto_code,
)


def generated_files() -> Files:
    """Every generated file and its current text."""
    return {path: text for make in GENERATORS for path, text in make().items()}


def stale_files(files: Files) -> Sequence[Path]:
    """Files that differ on disk or are missing."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def main(argv: Sequence[str]) -> int:
    """Return 1 with ``--check`` if a file is stale, else 0."""
    parser = argparse.ArgumentParser(prog="python -m deploy.generated", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="list stale files without writing")
    check = parser.parse_args(argv).check
    files, orphans = generated_files(), render.orphaned_files()
    stale = stale_files(files)
    if check:
        names = [str(path.relative_to(ROOT)) for path in (*stale, *orphans)]
        sys.stderr.writelines(f"{name} is stale: run `make generated`\n" for name in names)
        return int(bool(names))
    for path in orphans:
        path.unlink()
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
        sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
