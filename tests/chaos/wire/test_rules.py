"""What rules come to for one connection, and which are refused."""

import pytest

from chaos.wire.rules import CALM, Rule, RuleError, parse_rule, sources_named, weather

LINKS = ("engine:e0", "engine:e1")


def test_rules_add_up_for_those_they_mean_and_for_nobody_else() -> None:
    rules = {
        "late": Rule(links=("engine:e0",), latency_s=0.1, jitter_s=0.01),
        "later": Rule(links=LINKS, sources=("127.0.0.2",), latency_s=0.2, loss_percent=50),
        "narrow": Rule(links=("engine:e0",), bytes_per_s=1000, loss_percent=50),
    }

    both = weather(rules, "engine:e0", "127.0.0.2")

    assert (both.latency_s, both.jitter_s) == pytest.approx((0.3, 0.01))
    assert both.loss_share == pytest.approx(0.75)
    assert both.caps == ("narrow",)
    assert weather(rules, "engine:e1", "127.0.0.2").latency_s == pytest.approx(0.2)
    assert weather(rules, "engine:e1", "127.0.0.3") == CALM
    assert sources_named(rules.values(), "engine:e0") == ("127.0.0.2",)


def test_nothing_passes_a_black_hole_whatever_else_is_wrong() -> None:
    rules = {"hole": Rule(links=LINKS, black_hole=True), "lossy": Rule(links=LINKS, loss_percent=10)}

    assert weather(rules, "engine:e0", "127.0.0.2").black_hole


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"links": ["engine:e9"]}, "there is no 'engine:e9'"),
        ({"links": []}, "links"),
        ({"links": ["engine:e0"], "latency": 1}, "latency"),
        ({"links": ["engine:e0"], "loss_percent": 101}, "loss_percent"),
        ({"links": ["engine:e0"], "bytes_per_s": 0}, "bytes_per_s"),
        ({"links": ["engine:e0"], "sources": ["p0"]}, "IPv4"),
        ([], "Rule"),
    ],
)
def test_a_rule_without_sense_is_refused_by_name(answer: object, says: str) -> None:
    with pytest.raises(RuleError, match=says):
        parse_rule(answer, LINKS)
