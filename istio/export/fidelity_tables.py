"""What becomes of each field in Istio, as the tables of ``docs/istio.md``."""

from collections.abc import Iterator

from policies.model import KINDS
from policies.schema import leaf_targets

BEGIN = "<!-- made by `switchgear export istio --table` -->"
END = "<!-- end of what is made -->"


def fidelity_tables() -> str:
    """One table for each kind of document; fields of one fate and for one reason share a row."""
    return "\n".join((BEGIN, *_lines(), "", END, ""))


def _lines() -> Iterator[str]:
    for kind in KINDS:
        rows: dict[tuple[str, str, str], list[str]] = {}
        for path, targets in leaf_targets(kind).items():
            outcome, name = targets.istio, path.removeprefix("spec.")
            rows.setdefault((outcome.fidelity.value, outcome.target, outcome.how), []).append(f"`{name}`")
        yield from ("", f"### {kind}", "", "| fields | fate | carried by | how |", "|---|---|---|---|")
        for (fate, target, how), paths in rows.items():
            yield f"| {', '.join(paths)} | {fate} | {target or '-'} | {how.replace('|', '/')} |"
