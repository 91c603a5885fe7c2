"""Validates a change request: its texts, author and reason."""

from collections.abc import Mapping
from pathlib import Path

from policies.findings import PolicyError, PolicyErrors
from policies.load import load_contents
from xds_server.model.policy_state import AcceptedPolicies
from xds_server.rollout.history.change_errors import RefusedChangeError, UnusableTextsError
from xds_server.rollout.history.policy_version import MAX_COMMENT, digest_of


def check_author_and_reason(*said: str) -> None:
    """``RefusedChangeError`` for authors and reasons that do not belong in a log."""
    for one in said:
        if len(one) > MAX_COMMENT or not one.isprintable():
            raise RefusedChangeError(f"--by and --reason must be one line of at most {MAX_COMMENT} characters")


def parse_policies(texts: Mapping[str, str]) -> AcceptedPolicies:
    """The policies of these texts; ``UnusableTextsError`` with every problem."""
    try:
        contents = {Path(name): text.encode(errors="surrogatepass") for name, text in texts.items()}
        policies = load_contents(contents)
    except PolicyErrors as refusal:
        raise UnusableTextsError(
            tuple(error for error in refusal.exceptions if isinstance(error, PolicyError))
        ) from refusal
    return AcceptedPolicies(policies=policies, texts=dict(texts), digest=policies.digest, former=digest_of(texts))
