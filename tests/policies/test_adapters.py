"""Routes to adapters: what is refused, where, and what draws a warning."""

from pathlib import Path

import pytest

from policies.findings import PolicyErrors
from policies.lints.lint import lint
from policies.load import load_contents
from policies.model import PolicySet
from tests.policies.conftest import SOUND


def loaded(more: str, *, base: str = SOUND) -> PolicySet:
    return load_contents({Path("p.yaml"): f"{base}{more}".encode()})


def test_route_to_an_adapter_needs_its_name() -> None:
    with pytest.raises(PolicyErrors) as caught:
        loaded("  adapter: true\n")
    [found] = caught.value.exceptions
    assert (found.code, found.path) == ("SG040", "spec.adapter")
    assert "match.model" in found.hint


def test_three_lines_route_to_an_adapter() -> None:
    policies = loaded("  match: {model: sql}\n  adapter: true\n")
    assert [route.spec.adapter_name for route in policies.routes.values()] == ["sql"]
    assert not [one for one in lint(policies) if one.path == "spec.adapter"]
    other = loaded("  match: {model: sql}\n")
    assert [route.spec.adapter_name for route in other.routes.values()] == [""]


def test_adapter_named_like_the_model_draws_a_warning() -> None:
    [pool] = loaded("").pools.values()
    policies = loaded(f"  match: {{model: {pool.spec.model}}}\n  adapter: true\n")
    assert [one.code for one in lint(policies) if one.path == "spec.adapter"] == ["SG158"]


@pytest.mark.parametrize(("agent", "codes"), [("", ["SG159"]), (", agentPort: 9000", [])])
def test_unread_engines_draw_a_warning(agent: str, codes: list[str]) -> None:
    base = SOUND.replace("port: 8000", f"port: 8000{agent}").replace(
        "spec:\n", "spec:\n  probe: {enabled: false}\n", 1
    )
    policies = loaded("  match: {model: sql}\n  adapter: true\n", base=base)
    assert [one.code for one in lint(policies) if one.path == "spec.adapter"] == codes
