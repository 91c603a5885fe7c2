"""What somebody gives with a change, checked: the texts, and the words that go with them."""

from collections.abc import Mapping
from pathlib import Path

from policies.findings import PolicyError, PolicyErrors
from policies.load import load_contents
from xds_server.history.told import RefusedChangeError, UnusableTextsError
from xds_server.history.version import MAX_SAID, digest_of
from xds_server.sources.files import Accepted


def check_said(*said: str) -> None:
    """``RefusedChangeError`` for names and reasons that do not belong in a log."""
    for one in said:
        if len(one) > MAX_SAID or not one.isprintable():
            raise RefusedChangeError(f"--by and --reason are one line of at most {MAX_SAID} characters")


def judged(texts: Mapping[str, str]) -> Accepted:
    """The policies of these texts; ``UnusableTextsError`` with every problem."""
    try:
        contents = {Path(name): text.encode(errors="surrogatepass") for name, text in texts.items()}
        policies = load_contents(contents)
    except PolicyErrors as refusal:
        raise UnusableTextsError(
            tuple(error for error in refusal.exceptions if isinstance(error, PolicyError))
        ) from refusal
    return Accepted(policies=policies, texts=dict(texts), digest=policies.digest, former=digest_of(texts))
