"""The one list of generated files: reference pages, CRDs, manifests, rules, dashboards, licences, protobuf code.

python -m deploy.generated            rewrites; `make generated`
python -m deploy.generated --check    names each stale file, and changes nothing; part of `make check`

Golden files and pictures are not generated: tests write them, and a person reviews the difference.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from chaos.command_reference import commands_markdown
from chaos.reference import reference_markdown
from deploy import licences, render
from istio.export.fidelity_tables import BEGIN, END, fidelity_tables
from policies.crd.crd import PLURALS
from policies.reference import codes_markdown, defaults_yaml, policies_markdown
from xds_server.admin_api.api_schema import api_markdown
from xds_server.cli.schema import definition

ROOT: Final = Path(__file__).resolve().parents[1]
PROTO: Final = Path("engine/proto/engine_report.proto")

LOCKED_PYTHON: Final = (3, 11)
"""requirements.lock is made by it; later ones need fewer packages."""

Files = Mapping[Path, str]
"""Texts by path."""


def reference_pages() -> Files:
    """Pages and files written from the models, codes, scenarios and commands."""
    pages = {
        "policies/default.yaml": defaults_yaml,
        "docs/policies.md": policies_markdown,
        "docs/codes.md": codes_markdown,
        "docs/cli.md": commands_markdown,
        "docs/admin-api.md": api_markdown,
        "docs/chaos/reference.md": reference_markdown,
    }
    return {ROOT / path: text() for path, text in pages.items()}


def istio_tables() -> Files:
    """The page about Istio, with the tables that the code gives."""
    path = ROOT / "docs" / "istio.md"
    page = path.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    return {path: f"{before}{fidelity_tables().rstrip()}{after}"}


def crds() -> Files:
    """Custom resource definitions, written from the models."""
    return {ROOT / "deploy" / "crds" / f"{plural}.yaml": definition(kind) for kind, plural in PLURALS.items()}


def chart() -> Files:
    """Copies in the chart, manifests rendered from it, and all that the table of metrics gives."""
    copies = {render.CHART / "crds" / path.name: text for path, text in crds().items()}
    return {**render.generated_files(), **copies}


def licence_page() -> Files:
    """Licences of the installed packages that the product needs; elsewhere the page stays as it is."""
    if sys.version_info[:2] != LOCKED_PYTHON:
        return {}
    return {licences.PAGE: licences.page()}


def proto_code() -> Files:
    """What protoc makes of the wire format of reports."""
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
    proto_code,
)


def generated_files() -> Files:
    """Every generated file, with its text as it should be."""
    return {path: text for make in GENERATORS for path, text in make().items()}


def stale_files(files: Files) -> Sequence[Path]:
    """Those of ``files`` that differ on disk or are missing."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def main(argv: Sequence[str]) -> int:
    """0 when every file is current, or was written; 1 with ``--check`` when one is stale."""
    parser = argparse.ArgumentParser(prog="python -m deploy.generated", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="name each stale file, and change nothing")
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
