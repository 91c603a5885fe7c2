"""Valid policies that cause outages: each warning has its line and numbers, and its fix draws no warning."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.agent.agent_config import AgentConfig
from policies.findings import Finding
from policies.lints.limit_lints import DEFAULT_PORTS
from policies.lints.lint import lint
from policies.load import load
from policies.model import PolicySet
from policies.resilience import ResilienceSpec
from xds_server.envoy_bootstrap import Bootstrap
from xds_server.serve_config import ServeConfig

HEAD = "---\napiVersion: switchgear.dev/v1alpha1\nkind: ResiliencePolicy\nmetadata: {name: default}\nspec:\n  "
POOL = "  model: llama\n"
ROUTE = "listener: {port: 80}"
NIGHT = """\
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: night}
spec: {listener: {port: 81}, priority: batch, pools: [{pool: chat}]}
"""


def findings(folder: Path, text: str) -> list[Finding]:
    (folder / "a.yaml").write_text(text)
    return list(lint(load([folder])))


def in_policy(wrong: str, right: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    return (lambda sound: f"{sound}{HEAD}{wrong}\n"), (lambda sound: f"{sound}{HEAD}{right}\n")


def in_pool(wrong: str, right: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    return (
        lambda sound: sound.replace(POOL, f"{POOL}  probe: {{{wrong}}}\n"),
        lambda sound: sound.replace(POOL, f"{POOL}  probe: {{{right}}}\n"),
    )


def in_route(wrong: str, right: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    return (lambda sound: sound.replace(ROUTE, wrong)), (lambda sound: sound.replace(ROUTE, right))


CASES = {
    "connections": (
        *in_policy("limits: {maxConnections: 1}", "limits: {maxConnections: 24}"),
        "SG172",
        "maxConnections",
        "with maxConnections 1 one Envoy fills 1 of 24 slots, lets 1 more request wait",
        "raise maxConnections to 24 or more",
    ),
    "connections just below the slots": (
        *in_policy("limits: {maxConnections: 23}", "limits: {maxConnections: 24}"),
        "SG172",
        "maxConnections",
        "fills 23 of 24 slots, lets 23 more requests wait",
        "raise maxConnections to 24 or more",
    ),
    "wrong paths": (
        *in_policy("breaker: {countStatuses: [500, 404]}", "breaker: {countStatuses: [500]}"),
        "SG173",
        "countStatuses",
        "404 is the caller's error: 5 consecutive answers with it eject a healthy engine",
        "set countStatuses: [500]",
    ),
    "shedding": (
        *in_policy("breaker: {countStatuses: [503, 502]}", "breaker: {countStatuses: [502]}"),
        "SG173",
        "countStatuses",
        "503 is load shedding, not failure",
        "set countStatuses: [502]",
    ),
    "shedding alone": (
        *in_policy("breaker: {countStatuses: [429], consecutiveErrors: 0}", "breaker: {consecutiveErrors: 0}"),
        "SG173",
        "countStatuses",
        "429 is load shedding, not failure: 40 % of answers with it eject a healthy engine",
        "remove countStatuses",
    ),
    "stall": (
        *in_pool("interval: 10s", "interval: 1s"),
        "SG174",
        "interval",
        "stallAfter promises to find a hang after 1s, but an engine is read every 10s: a hang may last 11s",
        "lower interval to 1s or less",
    ),
    "stall, other fix": (
        *in_pool("interval: 2s", "interval: 2s, stallAfter: 2s"),
        "SG174",
        "interval",
        "an engine is read every 2s",
        "raise stallAfter to 2s",
    ),
    "short timeout": (
        *in_pool("timeout: 100ms", "timeout: 250ms"),
        "SG175",
        "timeout",
        "an engine ten times slower than usual needs longer for a token: it counts as hung",
        "write 1s",
    ),
    "silence": (
        *in_pool("timeout: 60s", "timeout: 29.5s"),
        "SG174",
        "timeout",
        "500ms (interval) + 60s (timeout) = 60.5s to find an idle engine hung, but betweenTokens cuts requests",
        "lower timeout to 29.5s or less",
    ),
    "silence of interval": (
        *in_pool("interval: 40s, stallAfter: 40s", "interval: 7.5s, timeout: 15s, stallAfter: 8s"),
        "SG174",
        "interval",
        "40s (interval) + 1s (timeout) = 41s",
        "lower interval to 7.5s and timeout to 15s",
    ),
    "shares": (
        lambda sound: f"{sound}{NIGHT}{HEAD}limits: {{priorities: {{interactive: {{sharePercent: 95}}}}}}\n",
        lambda sound: f"{sound}{NIGHT}{HEAD}limits: {{priorities: {{interactive: {{sharePercent: 90}}}}}}\n",
        "SG125",
        "sharePercent",
        "interactive 95 % + batch 10 % = 105 %: neither share is guaranteed, interactive gets 90 %",
        "lower interactive to 90, or batch to 5",
    ),
    "shares of one class": (
        *in_policy(
            "limits: {priorities: {interactive: {sharePercent: 80}, batch: {sharePercent: 40}}}",
            "limits: {priorities: {interactive: {sharePercent: 60}, batch: {sharePercent: 40}}}",
        ),
        "SG125",
        "sharePercent",
        "interactive 80 % + batch 40 % = 120 %",
        "lower interactive to 60, or batch to 20",
    ),
    "listener": (
        *in_route("listener: {port: 9901}", "listener: {port: 9981}"),
        "SG139",
        "listener",
        "port 9901 is by default Envoy's admin port",
        "use another port, such as 9981",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_warning_has_line_and_numbers_and_its_fix_works(
    tmp_path: Path,
    sound: str,
    case: tuple[Callable[[str], str], Callable[[str], str], str, str, str, str],
) -> None:
    wrong, right, code, word, message, fix = case
    text = wrong(sound)
    mine = [one for one in findings(tmp_path, text) if one.code == code]
    assert len(mine) == 1
    assert message in mine[0].message
    assert fix in mine[0].fix
    assert mine[0].origin is not None
    assert word in text.splitlines()[mine[0].origin.line - 1]
    assert [one for one in findings(tmp_path, right(sound)) if one.code == code] == []


def test_default_policy_draws_none_of_them(tmp_path: Path, sound: str) -> None:
    assert findings(tmp_path, sound) == []
    breaker = ResilienceSpec().breaker
    statuses = ", ".join(map(str, breaker.count_statuses))
    assert findings(tmp_path, f"{sound}{HEAD}breaker: {{countStatuses: [{statuses}]}}\n") == []


def test_probe_that_is_off_draws_no_timing_warning(tmp_path: Path, sound: str) -> None:
    text = sound.replace(POOL, f"{POOL}  probe: {{enabled: false, interval: 10s}}\n")
    assert {one.code for one in findings(tmp_path, text)} == {"SG129"}


def test_reserved_ports_are_the_defaults_of_the_processes() -> None:
    serve, agent = ServeConfig(policies=(Path("p.yaml"),)), AgentConfig()
    defaults = {
        Bootstrap(node="gw").admin_port,
        serve.listen.port,
        serve.admin.port,
        agent.http.port,
        agent.grpc.port,
    }
    assert defaults <= set(DEFAULT_PORTS)
    values = (Path(__file__).parents[2] / "deploy/helm/switchgear/values.yaml").read_text()
    assert "healthPort: 19001" in values
    assert set(DEFAULT_PORTS) - defaults == {19001}


@pytest.mark.parametrize("port", DEFAULT_PORTS)
def test_advised_port_is_free(tmp_path: Path, sound: str, port: int) -> None:
    def routes(at: int) -> PolicySet:
        (tmp_path / "a.yaml").write_text(sound.replace(ROUTE, f"listener: {{port: {at}}}"))
        return load([tmp_path])

    [finding] = lint(routes(port))
    advised = int(finding.fix.split("such as ")[1].split(",")[0])
    assert lint(routes(advised)) == ()
