"""Policies of a production fleet, made to fit engines on loopback."""

from pathlib import Path

import pytest
import yaml

from chaos.testbed.policy_documents import LabEngineAddress, policy_documents
from chaos.testbed.policy_fit import PolicyFit, PolicyFitError, policy_fit
from chaos.testbed.subjects import PolicySubject, StaticSubject, policy_sets, subjects
from policies.findings import PolicyErrors
from policies.load import load, load_contents
from policies.model import PolicySet
from tests.chaos.lab.experiments import experiment

EXAMPLES = Path(__file__).parents[3] / "policies" / "examples"
FILES = sorted(EXAMPLES.glob("*.yaml"))


def served(fitting: PolicyFit) -> PolicySet:
    """What the lab's control plane would read."""
    return load_contents({Path("lab.yaml"): text(fitting).encode()})


def text(fitting: PolicyFit) -> str:
    names = [one.name for one in fitting.experiment.engines]
    names += [one.name for side in fitting.side_pools for one in side.engines]
    addresses = {
        name: LabEngineAddress(port=20_000 + place, agent_port=30_000) for place, name in enumerate(names)
    }
    return policy_documents(fitting, addresses, {port: 40_000 + place for place, port in enumerate(fitting.ports)})


def policies(*expected: str) -> PolicySet:
    """Policies of one pool named chat, and more documents."""
    head = "apiVersion: switchgear.dev/v1alpha1\n"
    usual = (
        "kind: EnginePool\nmetadata: {name: chat}\n"
        "spec: {model: m, serviceTime: 2s, slotsPerEngine: 16, endpoints: [{address: 10.0.0.1, port: 80}]}\n"
    )
    joined = "---\n".join(head + one for one in (usual, *expected))
    return load_contents({Path("policies.yaml"): joined.encode()})


def route(name: str, pools: str = "[{pool: chat}]", more: str = "") -> str:
    return (
        f"kind: ModelRoute\nmetadata: {{name: {name}}}\n"
        f"spec: {{listener: {{port: 10000}}, pools: {pools}{', ' if more else ''}{more}}}\n"
    )


def policy(spec: str, name: str = "default") -> str:
    return f"kind: ResiliencePolicy\nmetadata: {{name: {name}}}\nspec: {spec}\n"


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_fitted_examples_reload_and_use_loopback_only(file: Path) -> None:
    fitting = policy_fit(load([file]), experiment())
    expected = served(fitting)
    assert "address: 10." not in text(fitting)
    assert {one.address for pool in expected.pools.values() for one in pool.spec.endpoints} == {"127.0.0.1"}
    assert {one.spec.listener.address for one in expected.routes.values()} == {"127.0.0.1"}
    assert [one.name for one in expected.pools[fitting.pool].spec.endpoints] == ["e0", "e1", "e2", "e3"]
    assert expected.effective[fitting.pool].limits.max_wait == pytest.approx(fitting.max_wait_s, abs=1e-3)
    assert fitting.time_scale <= 8
    assert expected.pools[fitting.pool].spec.service_time == pytest.approx(fitting.experiment.service_s)


def test_objectives_of_routes_and_pools_are_scaled() -> None:
    declared = "{goodPercent: 99, firstToken: {p95: 2s}, total: {p99: 8s}%s}"
    chat = (
        "kind: EnginePool\nmetadata: {name: chat}\n"
        "spec: {model: m, serviceTime: 2s, endpoints: [{address: 10.0.0.1, port: 80}], objectives: "
        + declared % ", betweenTokens: {p95: 400ms, p99: 40ms}"
        + "}\n"
    )
    head = "apiVersion: switchgear.dev/v1alpha1\n"
    joined = f"{head}{chat}---\n{head}{route('chat', more='objectives: ' + declared % '')}"
    fitting = policy_fit(load_contents({Path("policies.yaml"): joined.encode()}), experiment())
    assert fitting.time_scale == 4  # the lab's service time is 500 ms
    found = served(fitting)
    usual = [("good", 0.0), ("first-token-p95", 0.5), ("total-p99", 2.0)]
    assert [(one.name, one.limit_s) for one in found.routes["chat"].spec.objectives.all()] == usual
    # The lab's engines send a token every 10 ms: a limit of 10 ms would measure the machine.
    gaps = [("between-tokens-p95", 0.1), ("between-tokens-p99", 0.03)]
    assert [(one.name, one.limit_s) for one in found.pools["chat"].spec.objectives.all()] == [*usual, *gaps]


def test_only_request_times_are_scaled() -> None:
    expected = "{limits: {maxWait: 1s}, timeouts: {nonStreaming: {perTry: 6s}}, breaker: {cooldown: 20s}}"
    before = policies(route("chat"), policy(expected))
    fitting = policy_fit(before, experiment())
    assert fitting.time_scale == 4
    spec = served(fitting).effective["chat"]
    assert spec.limits.max_wait == 0.25
    assert spec.timeouts.non_streaming.per_try == 1.5
    assert spec.breaker.cooldown == 20
    # Defaults are scaled too.
    assert spec.timeouts.streaming.total == 225
    assert spec.timeouts.connect == 0.25


def test_output_has_set_fields_and_request_times_only() -> None:
    fitting = policy_fit(policies(route("chat"), policy("{breaker: {cooldown: 20s}}")), experiment())
    spec = served(fitting).policies["default"].spec
    assert spec.model_fields_set == {"breaker", "limits", "retries", "timeouts", "drain"}
    assert spec.breaker.model_fields_set == {"cooldown"}


def test_pool_policy_overrides_the_default_one() -> None:
    fitting = policy_fit(
        policies(
            route("chat"),
            policy("{limits: {maxWait: 4s}, retries: {attempts: 2}}"),
            policy("{pools: [chat], limits: {maxWait: 1s}}", "own"),
        ),
        experiment(),
    )
    spec = served(fitting).effective["chat"]
    assert (spec.limits.max_wait, spec.retries.attempts) == (0.25, 2)


def test_engines_are_slowed_to_match_policies() -> None:
    three_zones = load([EXAMPLES / "three-zones.yaml"])
    open_ = policy_fit(three_zones, experiment())
    assert (open_.time_scale, open_.experiment.service_s) == (8, 0.75)
    assert open_.experiment.rate_per_s == pytest.approx(0.6 * open_.experiment.capacity_per_s)
    # A rate set for engines of 0.5 s keeps its share of the capacity of slower ones.
    rated = experiment(load={"perSecond": 12})
    assert policy_fit(three_zones, rated).experiment.rate_per_s == pytest.approx(12 * 0.5 / 0.75)
    told = policy_fit(three_zones, experiment(topology={"service_time": "500ms"}, load={"perSecond": 12}))
    assert told.experiment.rate_per_s == 12
    assert (told.time_scale, told.experiment.service_s) == (12, 0.5)
    faster = policy_fit(three_zones, experiment(topology={"service_time": "10s"}))
    assert faster.time_scale == 1


def test_admission_limit_scales_with_slots() -> None:
    fitting = policy_fit(policies(route("chat"), policy("{limits: {maxConcurrent: 32}}")), experiment())
    # 16 slots in both: two requests per slot, one of them waiting.
    assert served(fitting).effective["chat"].limits.max_concurrent == 32
    assert fitting.max_wait_s == pytest.approx(fitting.experiment.service_s)
    double = policy_fit(policies(route("chat"), policy("{limits: {maxConcurrent: 32}}")), experiment(engines=8))
    assert served(double).effective["chat"].limits.max_concurrent == 64


def test_only_pools_with_kept_routes_get_engines() -> None:
    flagship = load([EXAMPLES / "flagship-with-fallback.yaml"])
    large = policy_fit(flagship, experiment())
    assert (large.pool, [one.name for one in large.side_pools]) == ("flagship", ["small"])
    assert large.shape.model == "llama-3.1-405b"
    assert [one.name for one in served(large).pools["small"].spec.endpoints] == ["small-0", "small-1"]
    assert set(served(large).routes) == {"flagship"}
    small = policy_fit(flagship, experiment(), pool="small")
    assert set(served(small).pools) == {"small"}
    assert set(served(small).policies) == {"default"}


def test_batch_headers_follow_the_batch_route() -> None:
    fitting = policy_fit(load([EXAMPLES / "interactive-and-batch.yaml"]), experiment())
    assert dict(fitting.shape.headers) == {}
    assert dict(fitting.shape.batch_headers) == {"x-priority": "batch"}
    assert not policy_fit(load([EXAMPLES / "single-pool.yaml"]), experiment()).shape.batch_headers


@pytest.mark.parametrize(
    ("condition", "headers"),
    [
        ("{name: x-team, exact: red}", {"x-team": "red"}),
        ("{name: X-Team, prefix: red-}", {"x-team": "red-"}),
        ("{name: x-team, regex: '^(red|blue)$'}", {"x-team": "red"}),
        ("{name: x-team, present: true}", {"x-team": "switchgear-lab"}),
        ("{name: x-team}", {"x-team": "switchgear-lab"}),
        ("{name: x-team, present: false}", {}),
        ("{name: x-team, present: true, invert: true}", {}),
        ("{name: x-team, exact: red, invert: true}", {"x-team": "switchgear-lab"}),
        ("{name: ':authority', exact: api.test}", {"host": "api.test"}),
    ],
)
def test_requests_match_the_route(condition: str, headers: dict[str, str]) -> None:
    fitting = policy_fit(policies(route("chat", more=f"match: {{headers: [{condition}]}}")), experiment())
    assert dict(fitting.shape.headers) == headers


@pytest.mark.parametrize(
    ("match", "why"),
    [
        ("{pathPrefix: /v2}", "excludes the engines' paths"),
        ("{headers: [{name: ':method', exact: POST}]}", "is not supported"),
        ("{headers: [{name: x-team, regex: '[0-9]{7}'}]}", "no value"),
        ("{stream: true}", "only streaming requests"),
    ],
)
def test_unmatchable_route_is_refused_with_the_reason(match: str, why: str) -> None:
    with pytest.raises(PolicyFitError, match=why):
        policy_fit(policies(route("chat", more=f"match: {match}")), experiment())


def test_streaming_route_accepts_streaming_load() -> None:
    expected = policies(route("chat", more="match: {stream: true}"))
    assert policy_fit(expected, experiment(load={"streaming_percent": 100})).shape.path == "/v1/completions"
    both = policies(route("chat", more="match: {stream: true}"), route("whole", more="match: {stream: false}"))
    assert set(served(policy_fit(both, experiment())).routes) == {"chat", "whole"}


def test_unknown_or_unused_pool_is_refused() -> None:
    flagship = load([EXAMPLES / "flagship-with-fallback.yaml"])
    with pytest.raises(PolicyFitError, match="use one of flagship, small"):
        policy_fit(flagship, experiment(), pool="larg")
    with pytest.raises(PolicyFitError, match="no ModelRoute"):
        policy_fit(policies(), experiment())


def test_scenario_overrides_the_first_token_gate() -> None:
    fitting = policy_fit(policies(route("chat")), experiment(topology={"first_token_gate": True}))
    assert fitting.gate
    assert served(fitting).pools["chat"].spec.first_token_gate


def test_unused_fields_are_dropped() -> None:
    for file in FILES:
        (first, *_) = yaml.safe_load_all(text(policy_fit(load([file]), experiment())))
        assert first["metadata"] == {"name": first["metadata"]["name"]}


def test_folder_of_examples_is_tested_per_file(tmp_path: Path) -> None:
    assert [Path(one.name).name for one in policy_sets([EXAMPLES])] == [path.name for path in FILES]
    (one,) = policy_sets([FILES[0]])
    assert one.files == (FILES[0],)
    for file in FILES:
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "wrong.yaml").write_text("kind: Nothing\n")
    with pytest.raises(PolicyErrors) as caught:
        policy_sets([tmp_path])
    # All that is wrong with all of them: the broken file and the contradictions.
    assert len({error.origin.file for error in caught.value.exceptions}) > 1


def test_subject_is_a_static_envoy_or_a_policy_path() -> None:
    naive, *rest = subjects(["naive", str(EXAMPLES)])
    assert isinstance(naive, StaticSubject)
    assert [type(one) for one in rest] == [PolicySubject] * len(FILES)


def test_lab_engines_use_plain_http() -> None:
    tls = "tls: {secret: engines, serverName: engine.test}, "
    spec = "model: m, endpoints: [{address: 10.0.0.2, port: 80}]"
    small = f"kind: EnginePool\nmetadata: {{name: small}}\nspec: {{{tls}{spec}}}\n"
    before = policies(small, route("chat", "[{pool: small}]", "fallbacks: [chat]"))
    assert before.pools["small"].spec.tls is not None
    assert served(policy_fit(before, experiment())).pools["small"].spec.tls is None
