"""What the documentation names there is: commands and their flags, metrics, codes, files, tests, benchmarks.

``mkdocs build --strict`` checks links between pages; this checks text in code style.
"""

import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from benchmarks.__main__ import LONG, NAMES
from chaos.cli import group as chaos
from chaos.fake_engine.__main__ import _parser as fake_engine
from chaos.scenario.scenario_codes import SCENARIO_CODES
from policies.codes import CODES, REMARKS
from policies.load import load
from xds_server.cli import group as switchgear
from xds_server.metrics.metric_table import TABLE

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = (
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
COMMANDS: Final = {"switchgear": switchgear, "switchgear-chaos": chaos}

FOREIGN: Final = {
    "vLLM": {
        "--enable-lora",
        "--max-loras",
        *("--enable-server-load-tracking", "--middleware", "--max-num-seqs", "--max-num-queued-reqs"),
        *(
            "--api-key",
            "--api-server-count",
            "--data-parallel-size",
            "--sse-keep-alive-interval",
            "--served-model-name",
            "--shutdown-timeout",
        ),
        *("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs", "--enable-ssl-refresh"),
        *("--otlp-traces-endpoint", "--enable-request-id-headers"),
    },
    "Envoy": {"--base-id", "--use-dynamic-base-id", "--concurrency"},
    "kubectl": {
        *("--current", "--field-manager", "--field-selector", "--grace-period", "--server-side", "--subresource"),
        *("--wait", "--crds"),
    },
    "cosign": {
        *(
            "--bundle",
            "--certificate-identity",
            "--certificate-oidc-issuer",
            "--insecure-ignore-tlog",
            "--predicate",
        ),
        *("--signing-config", "--yes"),
    },
    "sha256sum": {"--check", "--ignore-missing"},
    "helm": {"--values", "--create-namespace", "--reuse-values"},
    "nvidia-smi, dcgm, journalctl": {"--gpu-reset", "--collect-interval", "--follow"},
    "pip-compile": {
        "--extra",
        "--no-annotate",
        "--no-emit-find-links",
        "--no-emit-index-url",
        "--no-header",
        "--strip-extras",
    },
    "pytest": {"--api-server", "--update-golden", "--update-pictures", "--hypothesis-profile"},
    "curl": {"--retry", "--retry-all-errors", "--retry-delay"},
    "all": {"--help", "--python"},
}
"""Flags of other programs that pages mention."""
SPEECH: Final = {"switchgear_experiment", "switchgear_lab"}
"""Names that look like metrics: fixtures of pytest."""
READERS: Final = re.compile(r"^policies/chat\.yaml$|(?:NAME|KIND|TOOL|TOPIC)\.\w+$")
"""Files that are the reader's to write."""


def code(text: str) -> Iterator[str]:
    """Text in code style: spans and lines of blocks, only the commands where a block also shows output."""
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if kind in {"", "sh", "console"}:
            joined = block.replace("\\\n> ", " ").replace("\\\n", " ").splitlines()
            yield from (line.removeprefix("$ ") for line in joined)
    for span in re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        yield " ".join(span.split())


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that words ask for, and the words after it; UsageError where there is none."""
    command: click.Command = COMMANDS[words[0]]
    rest = words[1:]
    context = click.Context(command, info_name=words[0])
    while isinstance(command, click.Group) and rest:
        name, *rest = rest
        found = command.get_command(context, name)
        if re.search("[^a-z-]", name):
            return command, []  # a word that stands for several: `eject|drain`
        if found is None:
            raise click.UsageError(f"there is no `{name}`")
        command, context = found, click.Context(found, info_name=name, parent=context)
    return command, rest


def on_pages(wrong: Callable[[str], Iterable[str]]) -> dict[str, set[str]]:
    """What is wrong, by page; empty where nothing is."""
    found = {str(page.relative_to(ROOT)): set(wrong(page.read_text())) for page in PAGES}
    return {page: some for page, some in found.items() if some}


def misused(text: str) -> Iterator[str]:
    """Commands of ours that there are not, or not with these flags."""
    for line in code(text):
        if line.split(" ", 1)[0] not in COMMANDS:
            continue
        words = shlex.split(line, comments=True)
        words = words[: next((at for at, word in enumerate(words) if word in {"&", ">", "|", "..."}), None)]
        try:
            command, rest = command_of([word.rstrip(";,") for word in words])
        except click.UsageError as problem:
            yield f"{line}: {problem.message}"
            continue
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
        flags = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
        yield from (f"{line}: there is no {flag}" for flag in flags if flag not in known)


def test_commands_exist_and_have_the_flags_that_are_shown() -> None:
    assert on_pages(misused) == {}
    assert list(misused("`switchgear check`, `switchgear status -o json --secret x`, `switchgear get a|b`")) == [
        "switchgear check: there is no `check`",
        "switchgear status -o json --secret x: there is no --secret",
    ]


def test_flags_exist() -> None:
    known = set(re.findall(r"--[a-z][a-z0-9-]+", (ROOT / "docs" / "cli.md").read_text()))
    known |= {name for action in fake_engine()._actions for name in action.option_strings}
    known |= {
        flag
        for file in (*(ROOT / "benchmarks").rglob("*.py"), ROOT / "tests" / "conftest.py")
        for flag in re.findall(r'"(--[a-z-]+)"', file.read_text())
    }
    known = known.union(*FOREIGN.values())
    flag = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
    assert on_pages(lambda text: set(flag.findall(text)) - known) == {}


def test_metrics_exist() -> None:
    engine = "".join(file.read_text() for file in (ROOT / "engine").rglob("*.py"))
    known = {*TABLE, *re.findall(r'"(switchgear_[a-z_]+)"', engine), *SPEECH}
    # A name that ends so stands for all that begin so.
    known |= {name[: match.end()] for name in TABLE for match in re.finditer("_", name)}

    def unknown(text: str) -> Iterator[str]:
        for name in re.findall(r"(?<![:\w])switchgear_[a-z0-9_]+", text):
            if re.sub("_(bucket|sum|count)$", "", name) not in known:
                yield name

    assert on_pages(unknown) == {}
    assert list(unknown("switchgear_xds_nacks_total switchgear_made_up_total")) == ["switchgear_made_up_total"]


def test_codes_exist() -> None:
    known = {*CODES, *REMARKS, *SCENARIO_CODES}
    assert on_pages(lambda text: set(re.findall(r"\bS[GC]\d{3}\b", text)) - known) == {}


def test_files_exist() -> None:
    folders = "docs|deploy|tests|engine|chaos|benchmarks|xds_server|istio|envoy"
    named = re.compile(rf"(?:{folders}|policies)/[\w./-]+")

    def missing(text: str) -> Iterator[str]:
        for span in code(text):
            found = named.match(span)
            if (
                found
                and "." in Path(found[0]).name
                and not READERS.search(found[0])
                and not (ROOT / found[0]).exists()
            ):
                yield found[0]

    assert on_pages(missing) == {}


def first_column(heading: str) -> list[set[str]]:
    """The names in code style of the first column, by row, of a table of the architecture."""
    rows = (ROOT / "docs" / "architecture.md").read_text().partition(f"{heading}\n")[2].partition("\n\n")[0]
    return [{*re.findall(r"`([\w/]+?)/?`", row.split("|")[1])} for row in rows.splitlines()[1:]]


def test_the_architecture_has_the_rooms_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one.get("containers") == ["xds_server"])
    assert first_column("| rooms | what |") == [set(layer.split(" | ")) for layer in layers]


def test_the_architecture_has_every_folder_of_the_harness() -> None:
    folders = {path.parent.name for path in (ROOT / "chaos").glob("*/__init__.py")}
    assert set().union(*first_column("| folder in `chaos/` | what |")) == folders | {"scenarios"}


def test_tests_that_hold_limits_exist() -> None:
    said = set(re.findall(r"`((?:\w+/)?test_\w+)`", (ROOT / "docs" / "limits.md").read_text()))
    assert len(said) > 10
    assert {one for one in said if not list((ROOT / "tests").rglob(f"{one}.py"))} == set()


def test_policies_that_the_questions_are_asked_with_can_be_used() -> None:
    """They are typed in a checkout, whose folder of policies has several sets that contradict each other."""
    named = set(re.findall(r"-f (policies\S+)", (ROOT / "docs" / "faq.md").read_text()))
    assert named
    for one in named:
        assert load([ROOT / one]).pools, one


def test_benchmarks_exist() -> None:
    named = re.compile(r'(?:python -m benchmarks |ARGS="?)([a-z_]+)')
    assert on_pages(lambda text: set(named.findall(text)) - {*NAMES, *LONG}) == {}
    assert set(named.findall((ROOT / "docs" / "benchmarks.md").read_text())) >= {*NAMES, *LONG}


def test_links_of_pages_outside_the_site_exist() -> None:
    """The site's builder checks its own pages; these are outside of it."""
    for page in PAGES[:3]:
        targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        assert targets
        assert [one for one in targets if not (ROOT / one).exists()] == []


def test_no_page_asks_for_anything_from_outside() -> None:
    """Pages are read where nothing outside can be reached: pictures, fonts and scripts are their own."""
    outside = re.compile(r"!\[[^\]]*\]\(https?:|<(?:img|script|link|iframe)[^>]+(?:src|href)=[\"']?https?:")
    assert [page.name for page in PAGES if outside.search(page.read_text())] == []


def test_no_manifest_for_kubectl_begins_with_a_brace() -> None:
    """kubectl up to 1.32 takes such a file for JSON, and its other documents for garbage."""
    first = re.compile(r"(?:^```yaml\n|<<-?'?END'?[^\n]*\n)(?:> )?\{", re.MULTILINE)
    assert [page.name for page in PAGES if first.search(page.read_text())] == []
    for file in (*(ROOT / "deploy").rglob("*.yaml"), *(ROOT / "policies").rglob("*.yaml")):
        lines = (line for line in file.read_text().splitlines() if line.strip() and line[0] not in "#-")
        assert not re.match(r"\{(?!\{)", next(lines, "")), file
