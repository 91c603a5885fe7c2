"""Files that are made from the models are in step with them, and the examples are as they should be."""

from collections.abc import Callable
from pathlib import Path

import pytest

from policies.codes import CODES
from policies.lints.lint import lint
from policies.load import load
from policies.model import KINDS
from policies.reference import codes_markdown, defaults_yaml, policies_markdown
from policies.resilience import ResilienceSpec
from policies.schema import fields

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "policies" / "examples").glob("*.yaml"))


@pytest.mark.parametrize(
    ("path", "made", "how"),
    [
        ("policies/default.yaml", defaults_yaml, "--defaults"),
        ("docs/policies.md", policies_markdown, "--reference"),
        ("docs/codes.md", codes_markdown, "--codes"),
    ],
)
def test_made_files_are_in_step(path: str, made: Callable[[], str], how: str) -> None:
    assert (ROOT / path).read_text() == made(), f"run: switchgear explain {how} > {path}"


def test_the_defaults_file_is_a_policy_that_changes_nothing(tmp_path: Path, sound: str) -> None:
    (tmp_path / "pool.yaml").write_text(sound)
    policies = load([tmp_path, ROOT / "policies" / "default.yaml"])
    assert policies.effective["chat"] == ResilienceSpec()
    assert lint(policies) == ()
    written = {
        key.partition(".")[2] for key in policies.origins if key.startswith("ResiliencePolicy/default.spec.")
    }
    leaves = {
        one.path for one in fields("ResiliencePolicy").values() if one.path.startswith("spec.") and not one.block
    }
    assert leaves - written == {"spec.pools"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_have_no_error_and_no_warning(path: Path) -> None:
    policies = load([path])
    assert lint(policies) == ()
    assert policies.routes


def test_the_examples_there_must_be() -> None:
    names = {path.stem for path in EXAMPLES}
    assert names >= {"single-pool", "three-zones", "interactive-and-batch", "flagship-with-fallback"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_explains_itself(kind: str) -> None:
    for one in fields(kind).values():
        assert one.description, one.path
        assert one.description.rstrip().endswith((".", ")")), one.path
        assert one.allowed, one.path


def test_every_code_is_in_the_reference() -> None:
    text = codes_markdown()
    assert [code for code in CODES if f"### {code}: " not in text] == []
