"""Findings about played policies: code, line, message and fix."""

from pathlib import Path

from policies.findings import Finding
from policies.lints import consequence_findings as findings
from policies.lints.lint_context import LintContext
from policies.load import load_contents

POLICIES = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: m
  endpoints: [{address: 10.0.0.1, port: 8000}]
  probe:
    interval: 10s
---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {name: default}
spec:
  limits:
    maxConnections: 1
  breaker:
    countStatuses: [404]
"""


def chat() -> LintContext:
    policies = load_contents({Path("chat.yaml"): POLICIES.encode()})
    return LintContext(
        policies=policies, name="chat", pool=policies.pools["chat"].spec, spec=policies.effective["chat"]
    )


def place(one: Finding) -> tuple[str, str, int]:
    assert one.origin is not None
    return one.code, one.path, one.origin.line


def test_consequences_are_at_the_line_of_their_field() -> None:
    one = chat()
    assert [
        place(findings.slots_out_of_reach(one, served=2, slots=32)),
        place(findings.ejected_by_a_caller(one, status=404, left=1, engines=2)),
        place(findings.hung_engine_kept(one, after_s=12.0, played_s=12.0)),
        place(findings.restart_loses_requests(one, good=20.0, possible=90.0)),
    ] == [
        ("SG180", "spec.limits.maxConnections", 15),
        ("SG181", "spec.breaker.countStatuses", 17),
        ("SG182", "spec.probe.interval", 8),
        ("SG183", "spec.limits.maxConnections", 15),
    ]


def test_hang_beyond_the_play_has_an_unknown_end() -> None:
    assert "for at least 12s;" in findings.hung_engine_kept(chat(), after_s=12.0, played_s=12.0).message
    assert "for 4.4s;" in findings.hung_engine_kept(chat(), after_s=4.393, played_s=12.0).message
