"""Static answer of a route: what is refused, where, and what draws a warning."""

from pathlib import Path

import pytest

from policies.findings import PolicyErrors
from policies.lints.lint import lint
from policies.load import load_contents
from policies.model import PolicySet
from tests.policies.conftest import SOUND

SMALL = """---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: small}
spec: {model: a, endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}
"""


def loaded(answer: str, *, more: str = "") -> PolicySet:
    return load_contents({Path("p.yaml"): f"{SOUND}  staticAnswer: {answer}\n{more}".encode()})


@pytest.mark.parametrize(
    ("answer", "path"),
    [
        ("{}", "spec.staticAnswer.body"),
        ("{body: ''}", "spec.staticAnswer.body"),
        (f"{{body: {'a' * 4097}}}", "spec.staticAnswer.body"),
        ("{body: a, status: 100}", "spec.staticAnswer.status"),
        ("{body: a, status: 204}", "spec.staticAnswer.status"),
        ("{body: a, status: 304}", "spec.staticAnswer.status"),
        ("{body: a, fromLevel: 0}", "spec.staticAnswer.fromLevel"),
        ("{body: a, fromLevel: 5}", "spec.staticAnswer.fromLevel"),
        ("{body: a, whenLost: false}", "spec.staticAnswer.whenLost"),
        ('{body: a, contentType: "text/plain\\r\\nset-cookie: a"}', "spec.staticAnswer.contentType"),
        ("{body: a, contentType: text}", "spec.staticAnswer.contentType"),
        ("{body: a, retryAfter: 0s}", "spec.staticAnswer.retryAfter"),
    ],
)
def test_answer_that_cannot_be_given_is_refused_at_its_field(answer: str, path: str) -> None:
    with pytest.raises(PolicyErrors) as caught:
        loaded(answer)
    [found] = caught.value.exceptions
    assert found.path == path
    assert str(found.origin).startswith("p.yaml:")


def test_longest_body_is_accepted_and_given_from_its_level_on() -> None:
    answer = (
        loaded(f"{{fromLevel: 3, whenLost: false, body: '\"{'ä' * 4094}\"'}}").routes["front"].spec.static_answer
    )
    assert answer is not None
    assert [answer.applies_at(level) for level in range(5)] == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("answer", "fallbacks", "codes"),
    [
        ("{body: '{}'}", "", set()),
        ("{body: 'no', contentType: 'text/plain; charset=utf-8'}", "", set()),
        ("{body: 'no'}", "", {"SG149"}),
        ("{body: 'no', contentType: 'Application/JSON; charset=utf-8'}", "", {"SG149"}),
        ("{body: '{}', fromLevel: 2}", "  fallbacks: [small]\n", {"SG148"}),
        ("{body: '{}', fromLevel: 3}", "  fallbacks: [small]\n", set()),
        ("{body: '{}', fromLevel: 1}", "", set()),
    ],
)
def test_answer_that_callers_cannot_use_draws_a_warning(answer: str, fallbacks: str, codes: set[str]) -> None:
    found = lint(loaded(answer, more=f"{fallbacks}{SMALL if fallbacks else ''}"))
    assert {one.code for one in found} & {"SG148", "SG149"} == codes
