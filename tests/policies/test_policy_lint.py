"""Warnings: at the line that causes them, once, and only where they apply."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.findings import PolicyError
from policies.lints.lint import lint
from policies.lints.lint_context import LintContext
from policies.lints.retry_lints import worst_load
from policies.load import load
from policies.model import PolicySet
from policies.resilience import ResilienceSpec

HEAD = "apiVersion: switchgear.dev/v1alpha1\nkind: ResiliencePolicy\nmetadata: {name: default}\nspec: "


def advice(folder: Path, *texts: str) -> list[tuple[str, str]]:
    (folder / "a.yaml").write_text("---\n".join(texts))
    return [(one.code, one.message) for one in lint(load([folder]))]


def test_sound_policies_draw_nothing(tmp_path: Path, sound: str) -> None:
    assert advice(tmp_path, sound) == []


@pytest.mark.parametrize(
    ("spec", "codes"),
    [
        ("{timeouts: {nonStreaming: {perTry: 10s}}}", []),  # exactly wait plus longest service: 2 s + 8 s
        ("{timeouts: {nonStreaming: {perTry: 9.9s}}}", ["SG102"]),
        ("{timeouts: {nonStreaming: {perTry: 7.9s}}}", ["SG103"]),
        ("{timeouts: {nonStreaming: {perTry: 75s}}}", []),  # 4 x 75 s = 5 m
        ("{timeouts: {nonStreaming: {perTry: 76s}}}", ["SG101"]),
        ("{timeouts: {nonStreaming: {perTry: 76s, total: 0s}}}", []),  # 0s is off
        ("{timeouts: {nonStreaming: {total: 10s}}}", ["SG106"]),
        ("{timeouts: {nonStreaming: {total: 12s}}}", []),  # 0.6 x (12 s - 8 s) = 2.4 s
        ("{timeouts: {streaming: {total: 0s}}}", ["SG107"]),
        ("{timeouts: {streaming: {betweenTokens: 3s}}}", []),
        ("{timeouts: {streaming: {betweenTokens: 0s}}}", []),
        ("{limits: {concurrentPerSlot: 2}}", []),  # a wait of one service time
        ("{limits: {concurrentPerSlot: 3}, timeouts: {nonStreaming: {perTry: 10s}}}", ["SG102"]),
        ("{limits: {maxConcurrent: 72}, timeouts: {nonStreaming: {perTry: 10s}}}", ["SG102"]),
        ("{retries: {attempts: 3}}", []),
        ("{retries: {attempts: 4}}", ["SG110"]),
        ("{retries: {conditions: [connect-failure, reset]}}", []),  # the price of reset is documented
        ("{retries: {conditions: [gateway-error, retriable-4xx]}}", ["SG111", "SG111"]),
        ("{retries: {statuses: [429, 503]}}", []),
        ("{retries: {statuses: [500]}}", ["SG111"]),
        ("{retries: {statuses: [500], attempts: 0}}", []),
        ("{retryBudget: {percent: 0, minConcurrency: 1}}", []),
        ("{limits: {concurrentPerSlot: 30}, retryBudget: {percent: 20}}", ["SG105"]),
        ("{hedging: {enabled: false, maxPercent: 100}}", []),
        (
            "{hedging: {enabled: true, delay: 1s, belowUtilizationPercent: 100}, retries: {attempts: 1}}",
            ["SG115", "SG117"],
        ),
        ("{zones: {spill: false}}", ["SG120"]),
        ("{breaker: {errorRatePercent: 0.4}}", ["SG170"]),
        ("{breaker: {errorRatePercent: 1}, retryBudget: {percent: 0, minConcurrency: 1}}", []),
        ("{limits: {priorities: {batch: {sharePercent: 0.1}}}, retryBudget: {percent: 0.2}}", ["SG170"] * 2),
    ],
)  # fmt: skip
def test_rules_apply_at_their_limits(tmp_path: Path, sound: str, spec: str, codes: list[str]) -> None:
    assert sorted(code for code, _ in advice(tmp_path, sound, f"{HEAD}{spec}\n")) == codes


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ("{limits: {maxWait: 4m}}", "175.2s"),  # 0.6 x (5 m - 8 s)
        ("{limits: {maxWait: 176s}}", "175.2s"),
        ("{limits: {maxWait: 175s}}", None),
        ("{limits: {maxWait: 2s}, timeouts: {nonStreaming: {total: 10s}}}", "1.2s"),
        ("{limits: {maxWait: 2s}, timeouts: {streaming: {total: 5s}}}", "0s"),
        ("{limits: {maxWait: 0s}, timeouts: {streaming: {total: 5s}}}", None),
        ("{limits: {maxWait: 4m}, timeouts: {nonStreaming: {total: 0s}, streaming: {total: 0s}}}", None),
        ("{limits: {maxWait: 4m, maxConcurrent: 9}}", None),  # has no effect
        ("{timeouts: {nonStreaming: {total: 10s}}}", None),  # no written wait: a warning only
    ],
)
def test_written_wait_too_long_is_refused_at_its_line(
    tmp_path: Path, sound: str, spec: str, allowed: str | None
) -> None:
    text = f"{sound}---\n{HEAD}\n  {spec}\n".replace("spec: \n  {", "spec:\n  {")
    (tmp_path / "a.yaml").write_text(text)
    if allowed is None:
        load([tmp_path])
        return
    with pytest.raises(ExceptionGroup) as refused:
        load([tmp_path])
    (error,) = refused.value.exceptions
    assert "SG042" in str(error)
    assert "pool chat" in str(error)
    assert isinstance(error, PolicyError)
    assert f"at most {allowed}" in error.allowed
    place = str(error).partition(": ")[0].rsplit(":", 2)
    assert text.splitlines()[int(place[1]) - 1].strip() == spec


@pytest.mark.parametrize(
    ("spec", "codes"),
    [
        ("{limits: {concurrentPerSlot: 30}}", ["SG105", "SG113"]),  # derived: 100 % under the ceiling
        ("{limits: {concurrentPerSlot: 30, mode: shadow}}", ["SG105"]),  # derived: 20 % where none is in force
        ("{limits: {concurrentPerSlot: 30, mode: shadow}, retryBudget: {percent: 50}}", ["SG105", "SG113"]),
    ],
)
def test_retry_budget_lint_uses_effective_budget(tmp_path: Path, sound: str, spec: str, codes: list[str]) -> None:
    assert sorted(code for code, _ in advice(tmp_path, sound, f"{HEAD}{spec}\n")) == codes


def test_hedges_of_one_request_run_at_the_same_time(tmp_path: Path, sound: str) -> None:
    gated = sound.replace("model: llama", "model: llama\n  firstTokenGate: true")
    spec = "{hedging: {enabled: true, delay: 1s, perRequest: 2}}"
    advised = dict(advice(tmp_path, gated, f"{HEAD}{spec}\n"))
    assert "3 engines at the same time (3x GPU work)" in advised["SG110"]
    assert "SG110" not in dict(advice(tmp_path, gated, f"{HEAD}{spec.replace('2', '1')}\n"))


def test_worst_load_of_retries_is_a_number(tmp_path: Path, sound: str) -> None:
    spec = "{retries: {attempts: 4}, retryBudget: {percent: 50, minConcurrency: 0}}"
    assert "and a full pool gets 2x its load" in dict(advice(tmp_path, sound, f"{HEAD}{spec}\n"))["SG110"]


@settings(max_examples=200, deadline=None)
@given(
    percent=st.integers(0, 100),
    least=st.integers(0, 40),
    attempts=st.integers(0, 5),
    hedges=st.none() | st.tuples(st.integers(1, 3), st.integers(1, 100)),
    slots=st.integers(1, 64),
    hedging_rests=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_worst_load_bounds_what_envoys_budget_lets_through(
    sound_policies: PolicySet,
    percent: int,
    least: int,
    attempts: int,
    hedges: tuple[int, int] | None,
    slots: int,
    hedging_rests: bool,
    order: Random,
) -> None:
    hedging = {} if hedges is None else {"enabled": True, "perRequest": hedges[0], "maxPercent": hedges[1]}
    budget = {"percent": percent, "minConcurrency": least}
    spec = {"retries": {"attempts": attempts}, "retryBudget": budget, "hedging": hedging}
    pool = sound_policies.pools["chat"].spec
    engine = pool.endpoints[0].model_copy(update={"slots": slots})
    context = LintContext(
        policies=sound_policies,
        name="chat",
        pool=pool.model_copy(update={"endpoints": (engine,)}),
        spec=ResilienceSpec.model_validate(spec),
    )
    most, share, floor, per_place = attempts, percent, least, 1
    if hedges is not None and not hedging_rests:
        most, share, floor, per_place = hedges[0], min(percent, hedges[1]), min(least, 1), hedges[0]
    # Envoy's rule, played on as many requests as there are slots until nothing more may start.
    extra = [0] * slots
    started = True
    while started:
        started = False
        for request in order.sample(range(slots), slots):
            places, calls = sum(1 for one in extra if one), slots + sum(extra)
            free = extra[request] > 0 or places < max(floor, int(share / 100 * calls))
            if free and extra[request] < min(most, per_place):
                extra[request], started = extra[request] + 1, True
    assert (slots + sum(extra)) / slots <= worst_load(context) + 1e-9


def test_overridden_limit_of_lower_layer_draws_nothing(tmp_path: Path, sound: str) -> None:
    below = f"{HEAD}{{limits: {{maxWait: 1s}}}}\n"
    above = HEAD.replace("default", "own") + "{pools: [chat], limits: {maxConcurrent: 48}}\n"
    assert advice(tmp_path, sound, below, above) == []
    below = f"{HEAD}{{limits: {{maxConcurrent: 48}}}}\n"
    above = HEAD.replace("default", "own") + "{pools: [chat], limits: {maxWait: 1s}}\n"
    assert [code for code, _ in advice(tmp_path, sound, below, above)] == ["SG126"]


def test_line_affecting_many_pools_draws_one_warning(tmp_path: Path, sound: str) -> None:
    pool, route = sound.split("---\n")
    other = pool.replace("chat", "code").replace("10.0.0", "10.0.1")
    routes = route, route.replace("front", "second").replace("port: 80", "port: 81").replace("chat", "code")
    path = tmp_path / "a.yaml"
    path.write_text("---\n".join((pool, other, *routes, f"{HEAD}\n  retries: {{attempts: 9}}\n")))
    (finding,) = lint(load([tmp_path]))
    assert "(and 1 more like this)" in finding.message
    assert finding.origin is not None
    assert path.read_text().splitlines()[finding.origin.line - 1] == "  retries: {attempts: 9}"
    assert str(finding).startswith(f"{finding.origin}: SG110: spec.retries.attempts: pool chat")


def test_pool_without_zones_draws_no_zone_warning(tmp_path: Path, sound: str) -> None:
    assert advice(tmp_path, sound.replace(", zone: a", "")) == []
    assert [code for code, _ in advice(tmp_path, sound.replace("zone: b", "zone: a"))] == ["SG120"]


@pytest.mark.parametrize(
    ("hedging", "others", "codes"),
    [
        ("enabled: true, delay: 1s", "", []),
        ("enabled: true", "", []),  # the delay is measured
        ("enabled: true, belowUtilizationPercent: 0", "", ["SG114"]),
        ("enabled: true, maxPercent: 0", "", ["SG114"]),
        ("belowUtilizationPercent: 0", "", []),
        ("enabled: true, delay: 1s, belowUtilizationPercent: 100", "", ["SG115"]),
        ("delay: 1s, belowUtilizationPercent: 60", "timeouts: {nonStreaming: {perTry: 75s}}", []),
        ("enabled: true", "timeouts: {nonStreaming: {perTry: 75s}}", ["SG118"]),
        ("enabled: true, delay: 1s", "timeouts: {nonStreaming: {perTry: 75s}}", ["SG118"]),
        ("enabled: true, delay: 1s", "timeouts: {streaming: {firstToken: 20s}}", ["SG118"]),
        ("enabled: true, delay: 1s", "breaker: {consecutiveLocalErrors: 2}", ["SG118"]),
        ("enabled: true, delay: 1s", "breaker: {consecutiveLocalErrors: 0}", []),
        ("enabled: true, delay: 1s", "retryBudget: {percent: 6}", ["SG118"]),
        ("enabled: true, delay: 1s", "retryBudget: {percent: 5}", []),
    ],
)
def test_lint_of_hedging_with_other_timeouts(
    tmp_path: Path, sound: str, hedging: str, others: str, codes: list[str]
) -> None:
    gated = sound.replace("model: llama", "model: llama\n  firstTokenGate: true")
    spec = f"{{hedging: {{{hedging}}}, retries: {{attempts: 1}}, {others}}}"
    assert sorted(code for code, _ in advice(tmp_path, gated, f"{HEAD}{spec}\n")) == codes


BATCH = """\
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: night}
spec: {listener: {port: 81}, priority: batch, pools: [{pool: chat}]}
"""

FALLBACK = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: small}
spec:
  model: llama
  endpoints:
    - {address: 10.0.1.1, port: 8000, zone: a}
    - {address: 10.0.1.2, port: 8000, zone: b}
    - {address: 10.0.1.3, port: 8000, zone: c}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: spare}
spec: {listener: {port: 82}, fallbacks: [small], pools: [{pool: chat}]}
"""


@pytest.mark.parametrize(
    ("ladder", "others", "codes"),
    [
        ("", [], []),
        ("fallback: {abovePressurePercent: 100, maxSharePercent: 99}", [FALLBACK], []),
        ("fallback: {abovePressurePercent: 99}", [FALLBACK], ["SG140"]),
        ("fallback: {abovePressurePercent: 131}", [FALLBACK], ["SG140"]),
        ("noHedging: {enabled: false}, fallback: {abovePressurePercent: 50}", [FALLBACK], []),
        ("fallback: {enabled: false, abovePressurePercent: 50}", [], []),
        ("fallback: {maxSharePercent: 50}", [], ["SG141"]),
        ("fallback: {maxSharePercent: 50}", [FALLBACK], []),
        ("shed: {abovePressurePercent: 120}", [], ["SG142"]),
        ("shed: {abovePressurePercent: 120, maxTokens: 100}", [], []),
        ("shed: {abovePressurePercent: 120}", [BATCH], []),
        ("shed: {longAnswers: reduce}", [BATCH], ["SG142"]),
        ("shed: {longAnswers: reduce, maxTokens: 100}", [], []),
        ("maintenance: {enabled: true}", [], []),
        ("maintenance: {enabled: true, abovePressurePercent: 200}", [], []),
        ("maintenance: {enabled: true, abovePressurePercent: 199}", [], ["SG143"]),
        ("maintenance: {abovePressurePercent: 199}", [], []),
        ("leaveAfter: 2s", [], []),
        ("leaveAfter: 1999ms", [], ["SG144"]),
        ("enterAfter: 6s", [], ["SG144"]),
        ("marginPercent: 0", [], ["SG144"]),
    ],
)
def test_degradation_rules_apply_at_their_limits(
    tmp_path: Path, sound: str, ladder: str, others: list[str], codes: list[str]
) -> None:
    spec = f"{HEAD.replace('default', 'own')}{{pools: [chat], degradation: {{{ladder}}}}}\n"
    assert sorted(code for code, _ in advice(tmp_path, sound, *others, spec)) == codes


SMALL = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: small}
spec:
  model: MODEL
  endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]
"""


@pytest.mark.parametrize(
    ("model", "route", "codes"),
    [
        ("tiny", "fallbacks: [small]", []),
        ("tiny", "fallbacks: [small], modelChange: opt-in", []),
        ("tiny", "fallbacks: [small], modelChange: never", ["SG134"]),
        ("llama", "fallbacks: [small], modelChange: never", []),
        ("llama", "fallbacks: [small], modelChange: opt-in", ["SG135"]),
        ("llama", "fallbacks: [small], modelChange: disclosed", []),
        ("tiny", "fallbacks: [small], sideEffects: true", []),
    ],
)
def test_fallback_with_another_model_draws_model_warnings(
    tmp_path: Path, sound: str, model: str, route: str, codes: list[str]
) -> None:
    routed = sound.replace("pools: [{pool: chat}]", f"pools: [{{pool: chat}}]\n  {route}".replace(", ", "\n  "))
    assert [code for code, _ in advice(tmp_path, routed, SMALL.replace("MODEL", model))] == codes


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("name: X-Envoy-Force-Trace, exact: a", "never matches"),
        ("name: x-envoy-attempt-count, present: true", "never matches"),
        ("name: x-envoy-attempt-count", "never matches"),
        ("name: x-envoy-attempt-count, present: false", "always matches"),
        ("name: x-envoy-attempt-count, present: false, invert: true", "never matches"),
        ("name: x-envoy-attempt-count, prefix: a, invert: true", "always matches"),
        ("name: x-envoy-external-address, prefix: '10.'", ""),
        ("name: x-envoys, exact: a", ""),
        ("name: session_id, exact: a", "never matches"),
    ],
)
def test_match_on_removed_header_draws_warning(tmp_path: Path, sound: str, header: str, said: str) -> None:
    routed = sound.replace(
        "pools: [{pool: chat}]", f"pools: [{{pool: chat}}]\n  match: {{headers: [{{{header}}}]}}"
    )
    found = advice(tmp_path, routed)
    assert [code for code, _ in found] == (["SG138"] if said else [])
    assert all(said in message for _, message in found)


@pytest.mark.parametrize(
    ("model", "weight", "codes"), [("tiny", 5, ["SG137"]), ("tiny", 0, ["SG130"]), ("llama", 5, [])]
)
def test_split_between_models_draws_warning(
    tmp_path: Path, sound: str, model: str, weight: int, codes: list[str]
) -> None:
    routed = sound.replace("pools: [{pool: chat}]", f"pools: [{{pool: chat}}, {{pool: small, weight: {weight}}}]")
    assert [code for code, _ in advice(tmp_path, routed, SMALL.replace("MODEL", model))] == codes


@pytest.mark.parametrize(
    ("spec", "pool", "code", "line"),
    [
        ("timeouts: {nonStreaming: {perTry: 2m}}", "", "SG101", "timeouts: {nonStreaming: {perTry: 2m}}"),
        ("timeouts: {streaming: {total: 20m}}", "", "SG107", "timeouts: {streaming: {total: 20m}}"),
        ("", "serviceTime: 2m", "SG104", "serviceTime: 2m"),
        ("", "longestServiceTime: 297s", "SG106", "longestServiceTime: 297s"),
        ("", "probe: {stallAfter: 5m}", "SG105", "probe: {stallAfter: 5m}"),
        (
            "retryBudget: {minConcurrency: 0, percent: 0}",
            "",
            "SG112",
            "retryBudget: {minConcurrency: 0, percent: 0}",
        ),
    ],
)
def test_warning_about_a_default_points_to_its_cause(
    tmp_path: Path, sound: str, spec: str, pool: str, code: str, line: str
) -> None:
    text = sound.replace("model: llama", f"model: llama\n  {pool}" if pool else "model: llama")
    text += f"---\n{HEAD}\n  {spec}\n" if spec else ""
    (tmp_path / "a.yaml").write_text(text)
    (finding,) = [one for one in lint(load([tmp_path])) if one.code == code]
    assert finding.origin is not None
    assert text.splitlines()[finding.origin.line - 1].strip() == line


def test_unreached_pool_points_to_its_name(tmp_path: Path, sound: str) -> None:
    text = sound.partition("---\n")[0]
    (tmp_path / "a.yaml").write_text(text)
    (finding,) = lint(load([tmp_path]))
    assert finding.code == "SG130"
    assert finding.origin is not None
    assert text.splitlines()[finding.origin.line - 1] == "metadata: {name: chat}"


@pytest.mark.parametrize(
    ("model", "codes"),
    [
        ("MODEL", ["SG171"]),
        ("YOUR_MODEL_NAME", ["SG171"]),
        ("<model>", ["SG171"]),
        ("${MODEL}", ["SG171"]),
        ("'{{ .Values.model }}'", ["SG171"]),
        ("changeme", ["SG171"]),
        ("model", []),
        ("meta-llama/Llama-3.1-8B", []),
        ("MODEL-7B", []),
    ],
)
def test_placeholder_model_draws_warning(tmp_path: Path, sound: str, model: str, codes: list[str]) -> None:
    assert [code for code, _ in advice(tmp_path, sound.replace("model: llama", f"model: {model}"))] == codes


def test_connect_below_a_round_trip_between_regions_is_reported(tmp_path: Path, sound: str) -> None:
    regions = sound.replace("zone: a}", "zone: a, region: eu}").replace("zone: b}", "zone: b, region: us}")
    regions = regions.replace("zone: c}", "zone: c, region: us}")
    assert "SG164" in dict(advice(tmp_path, regions))
    assert "SG164" not in dict(advice(tmp_path, regions, f"{HEAD}{{timeouts: {{connect: 1s}}}}\n"))
    assert "SG164" not in dict(advice(tmp_path, regions.replace("us}", "eu}")))


@pytest.mark.parametrize(("port", "codes"), [("", ["SG147"]), (", agentPort: 8001", [])])
def test_time_between_tokens_needs_agents(tmp_path: Path, port: str, codes: list[str]) -> None:
    pool = (
        "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\nmetadata: {name: chat}\nspec:\n  model: a\n"
        f"  endpoints:\n    - {{address: 10.0.0.1, port: 8000}}\n    - {{address: 10.0.0.2, port: 8000{port}}}\n"
        "  objectives: {betweenTokens: {p99: 100ms}}\n"
    )
    assert [code for code, _ in advice(tmp_path, pool) if code == "SG147"] == codes


@pytest.mark.parametrize(
    ("gate", "objectives", "codes"),
    [
        (True, "{firstToken: {p95: 2s, p99: 3s}, total: {p99: 60s}, goodPercent: 99.5}", []),
        (True, "{firstToken: {p95: 1999ms}}", ["SG145"]),  # requests may wait 2 s for a slot
        (True, "{total: {p95: 1ms, p99: 1ms}}", ["SG145", "SG145"]),
        (False, "{firstToken: {p99: 10s}}", ["SG146"]),
        (False, "{total: {p99: 60s}}", []),
    ],
)
@pytest.mark.parametrize("kind", ["EnginePool", "ModelRoute"])
def test_objectives_that_cannot_be_met_or_measured(
    tmp_path: Path, kind: str, gate: bool, objectives: str, codes: list[str]
) -> None:
    head = "apiVersion: switchgear.dev/v1alpha1\n"
    pool = (
        f"{head}kind: EnginePool\nmetadata: {{name: chat}}\nspec:\n  model: a\n"
        f"  firstTokenGate: {'true' if gate else 'false'}\n  endpoints:\n"
        "    - {address: 10.0.0.1, port: 8000}\n    - {address: 10.0.0.2, port: 8000}\n"
    )
    route = (
        f"{head}kind: ModelRoute\nmetadata: {{name: talk}}\nspec:\n  listener: {{port: 8080}}\n"
        f"  pools: [{{pool: chat}}]\n"
    )
    said = f"  objectives: {objectives}\n"
    pool, route = (pool + said, route) if kind == "EnginePool" else (pool, route + said)
    found = [code for code, _ in advice(tmp_path, pool, route) if code in ("SG145", "SG146")]
    assert found == codes


SIZED = "apiVersion: switchgear.dev/v1alpha1\nkind: ModelRoute\nmetadata: {name: large}\nspec: "


@pytest.mark.parametrize(("port", "codes"), [(80, []), (81, ["SG178"])])
def test_port_for_large_requests_only_is_reported(tmp_path: Path, sound: str, port: int, codes: list[str]) -> None:
    large = f"{SIZED}{{listener: {{port: {port}}}, match: {{tokensAbove: 4000}}, pools: [{{pool: chat}}]}}\n"
    found = advice(tmp_path, sound, large)
    assert [code for code, _ in found] == codes
    assert not found or "at most 4000 tokens" in found[0][1]


@pytest.mark.parametrize(
    ("rules", "fields", "codes"),
    [
        ("{retries: {large: {tokensAbove: 4000}}}", "body", []),
        ("{retries: {large: {tokensAbove: 4000}}}", "headers", ["SG179"]),
        ("{timeouts: {nonStreaming: {byTokens: {enabled: true}}}}", "headers", ["SG179"]),
        ("{hedging: {maxTokens: 4000}}", "headers", []),
    ],
)
def test_rules_by_size_need_bodies(tmp_path: Path, sound: str, rules: str, fields: str, codes: list[str]) -> None:
    stated = sound.replace("{port: 80}", f"{{port: 80, requestFields: {fields}}}")
    assert [code for code, _ in advice(tmp_path, stated, f"{HEAD}{rules}\n")] == codes
