"""What rules come to for one connection, and which are refused."""

import pytest

from chaos.netem.link_rules import (
    UNIMPAIRED,
    LinkRule,
    LinkRuleError,
    link_conditions,
    named_sources,
    parse_link_rule,
)

LINKS = ("engine:e0", "engine:e1")


def test_rules_add_up_for_matching_peers_only() -> None:
    rules = {
        "late": LinkRule(links=("engine:e0",), latency_s=0.1, jitter_s=0.01),
        "later": LinkRule(links=LINKS, sources=("127.0.0.2",), latency_s=0.2, loss_percent=50),
        "narrow": LinkRule(links=("engine:e0",), bytes_per_s=1000, loss_percent=50),
    }

    both = link_conditions(rules, "engine:e0", "127.0.0.2")

    assert (both.latency_s, both.jitter_s) == pytest.approx((0.3, 0.01))
    assert both.loss_share == pytest.approx(0.75)
    assert both.caps == ("narrow",)
    assert link_conditions(rules, "engine:e1", "127.0.0.2").latency_s == pytest.approx(0.2)
    assert link_conditions(rules, "engine:e1", "127.0.0.3") == UNIMPAIRED
    assert named_sources(rules.values(), "engine:e0") == ("127.0.0.2",)


def test_black_hole_overrides_other_rules() -> None:
    rules = {"hole": LinkRule(links=LINKS, black_hole=True), "lossy": LinkRule(links=LINKS, loss_percent=10)}

    assert link_conditions(rules, "engine:e0", "127.0.0.2").black_hole


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"links": ["engine:e9"]}, "unknown link 'engine:e9'"),
        ({"links": []}, "links"),
        ({"links": ["engine:e0"], "latency": 1}, "latency"),
        ({"links": ["engine:e0"], "loss_percent": 101}, "loss_percent"),
        ({"links": ["engine:e0"], "bytes_per_s": 0}, "bytes_per_s"),
        ({"links": ["engine:e0"], "sources": ["p0"]}, "IPv4"),
        ([], "Rule"),
    ],
)
def test_invalid_rule_is_refused(answer: object, says: str) -> None:
    with pytest.raises(LinkRuleError, match=says):
        parse_link_rule(answer, LINKS)
