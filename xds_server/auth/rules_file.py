"""Parse a file into ``Access``; reports problems in the format of policies."""

from pathlib import Path
from typing import Final

from policies.findings import PolicyError, PolicyErrors, Problem
from policies.origin import WHOLE_FILE, start
from policies.policy_files import decode_text, read
from policies.validation import Vocabulary, validate_document
from policies.yaml_text import parse
from xds_server.auth.access_rules import Access

NOUN: Final = "access"
_TO_POLICIES: Final = (
    "this is a policy: pass it with `switchgear serve -f`; access rules begin with `kind: Access`"
)
ACCESS: Final = Vocabulary(
    noun=NOUN,
    kinds={"Access": Access},
    elsewhere=dict.fromkeys(("EnginePool", "ModelRoute", "ResiliencePolicy"), _TO_POLICIES),
)


def read_access(path: Path) -> Access:
    """Rules in this file, which holds one document; raises ``PolicyErrors`` with every problem."""
    content = read(path, NOUN)
    text = content if isinstance(content, Problem) else decode_text(content)
    if isinstance(text, Problem):
        raise PolicyErrors.of([text.error(str(path))], NOUN)
    parsed = parse(text)
    problems = list(parsed.problems)
    found: list[Access] = []
    for raw in parsed.documents:
        if raw.value is None:
            continue  # empty document between two markers
        judged = validate_document(raw, ACCESS)
        problems += judged.problems
        if found and not judged.problems:
            problems.append(
                Problem(
                    code="SG030",
                    at=start(raw.places),
                    message="second document; the access rules must be one document",
                    hint="merge both into one",
                )
            )
        if isinstance(judged.model, Access):
            found.append(judged.model)
    if not problems and not found:
        problems.append(
            Problem(
                code="SG006",
                at=WHOLE_FILE,
                message="no access rules in this file",
                hint="start with `apiVersion: switchgear.dev/v1alpha1` and `kind: Access`",
            )
        )
    if problems:
        errors: list[PolicyError] = [problem.error(str(path)) for problem in problems]
        raise PolicyErrors.of(errors, NOUN)
    return found[0]
