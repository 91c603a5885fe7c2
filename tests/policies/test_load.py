"""Files to a policy set: errors in the operator's words, layers, places, and one edit among many."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from policies import load as loading
from policies.engine_tls import unusable_secret
from policies.findings import PolicyError, PolicyErrors
from policies.lints.lint import lint
from policies.load import LoadCache, load, load_contents
from policies.merge import setter
from policies.model import PolicySet

Errors = Callable[[str | bytes], list[PolicyError]]

POOL = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: llama
"""


def policy(name: str, spec: str) -> str:
    head = f"---\napiVersion: switchgear.dev/v1alpha1\nkind: ResiliencePolicy\nmetadata: {{name: {name}}}\n"
    return f"{head}spec:\n  {spec}\n"


def loaded(folder: Path, text: str) -> PolicySet:
    (folder / "policy.yaml").write_text(text)
    return load([folder])


@pytest.mark.parametrize(
    ("field", "code", "column", "path", "message", "hint"),
    [
        ("slots_per_engine: 8", "SG023", 3, "spec.slots_per_engine", "unknown field", "mean slotsPerEngine?"),
        ("serviceTim: 2s", "SG023", 3, "spec.serviceTim", "unknown field", "did you mean serviceTime?"),
        ("maxWait: 2s", "SG023", 3, "spec.maxWait", "unknown field", "spec.limits.maxWait of ResiliencePolicy"),
        ("slotsPerEngine: '8'", "SG025", 19, "spec.slotsPerEngine", '"8" is not a whole number', "write 8"),
        ("slotsPerEngine: 1_000", "SG025", 19, "spec.slotsPerEngine", "not a whole number", "write 1000"),
        ("slotsPerEngine: 010", "SG025", 19, "spec.slotsPerEngine", "not a whole number", "write 10"),
        ("slotsPerEngine: true", "SG025", 19, "spec.slotsPerEngine", "true is not a whole number", ""),
        ("slotsPerEngine: 8.5", "SG025", 19, "spec.slotsPerEngine", "8.5 is not a whole number", ""),
        ("slotsPerEngine:", "SG025", 18, "spec.slotsPerEngine", "nothing is not a whole", "remove the line"),
        ("slotsPerEngine: 0", "SG026", 19, "spec.slotsPerEngine", "0 is too small", ""),
        ("slotsPerEngine: 1e9", "SG025", 19, "spec.slotsPerEngine", "", ""),
        ("firstTokenGate: on", "SG025", 19, "spec.firstTokenGate", "not true or false", "write true"),
        ("firstTokenGate: No", "SG025", 19, "spec.firstTokenGate", "not true or false", "write false"),
        ("serviceTime: 5", "SG027", 16, "spec.serviceTime", "needs a unit", "5s or 5ms"),
        ("serviceTime: 5 seconds", "SG027", 16, "spec.serviceTime", "not a duration", "write 5s"),
        ("serviceTime: 0s", "SG026", 16, "spec.serviceTime", "0s is too small", ""),
        ("serviceTime: 99999h", "SG027", 16, "spec.serviceTime", "longer than ten years", ""),
        ("longestServiceTime: 25h", "SG026", 23, "spec.longestServiceTime", "too large", ""),
        ("probe: fast", "SG025", 10, "spec.probe", "not a block of fields", ""),
        ("probe: {path: /v1/models}", "SG026", 17, "spec.probe.path", "not an allowed value", ""),
        ("probe: {metricsPath: metrics}", "SG026", 24, "spec.probe.metricsPath", "invalid", "write /metrics"),
        ("endpoints: 10.0.0.1", "SG025", 14, "spec.endpoints", "not a list", "[{address: 10.0.0.1}]"),
        ("endpoints: [a]", "SG025", 15, "spec.endpoints[0]", "not a block of fields", "write {address: a}"),
        ("endpoints: [{port: 80}]", "SG024", 15, "spec.endpoints[0].address", "address is missing", "IP address"),
        ("endpoints: [{address: 10.0.0.256, port: 1}]", "SG026", 25, "spec.endpoints[0].address", "not an IP", ""),
        ("endpoints: [{address: 'http://a', port: 80}]", "SG026", 25, "spec.endpoints[0].address", "", "write a"),
        ("endpoints: [{address: 'a:80', port: 80}]", "SG026", 25, "spec.endpoints[0].address", "", "write a; put"),
        ("endpoints: [{address: a b, port: 80}]", "SG026", 25, "spec.endpoints[0].address", "neither", ""),
        ("endpoints: [{address: a, port: 0}]", "SG026", 34, "spec.endpoints[0].port", "too small", ""),
        ("endpoints: [{address: a, port: 80, zone: 1}]", "SG025", 44, "spec.endpoints[0].zone", "not text", '"1"'),
    ],
)  # fmt: skip
def test_errors_in_the_words_of_the_operator(
    errors_of: Errors, field: str, code: str, column: int, path: str, message: str, hint: str
) -> None:
    (error,) = errors_of(f"{POOL}  {field}\n")
    assert (error.code, error.path, error.origin.line, error.origin.column) == (code, path, 6, column)
    assert message in error.message
    assert hint in error.hint


def test_a_list_whose_items_are_all_wrong_is_not_called_empty(errors_of: Errors) -> None:
    route = POOL.replace("EnginePool", "ModelRoute").partition("spec:")[0]
    codes = [error.code for error in errors_of(f"{route}spec: {{listener: {{port: 80}}, pools: [chat]}}\n")]
    assert codes == ["SG025"]


def test_documents_of_others_are_sent_elsewhere(errors_of: Errors) -> None:
    own = errors_of(POOL.replace("v1alpha1", "v9"))
    foreign = errors_of(POOL.replace("switchgear.dev/v1alpha1", "apps/v1"))
    assert [error.code for error in (*own, *foreign)] == ["SG021", "SG021"]
    assert own[0].hint == "did you mean switchgear.dev/v1beta1?"
    assert foreign[0].hint == "move documents of other tools to another folder"


@pytest.mark.parametrize("spec", ["", "spec:", "spec: {}", "spec: 7", "spec: []"])
def test_a_spec_that_is_missing_or_nothing(errors_of: Errors, spec: str) -> None:
    text = POOL.partition("spec:")[0] + spec + "\n"
    assert {error.code for error in errors_of(text)} <= {"SG024", "SG025"}
    assert errors_of(text)


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::7", "engine-1.chat.svc.cluster.local", "localhost", "a_b"])
def test_addresses_that_are_fine(tmp_path: Path, address: str) -> None:
    text = f"{POOL}  endpoints: [{{address: '{address}', port: 80}}]\n"
    (endpoint,) = loaded(tmp_path, text).pools["chat"].spec.endpoints
    assert endpoint.address == address
    assert endpoint.name == (f"[{address}]:80" if ":" in address else f"{address}:80")


def test_all_problems_of_all_files_come_at_once_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POOL + "  modle: x\n  serviceTime: 5\n")
    (tmp_path / "b.yaml").write_text("kind: [\n")
    (tmp_path / "c.yaml").write_text(POOL.replace("chat", "Chat"))
    with pytest.raises(PolicyErrors, match="4 problems in policy files") as caught:
        load([tmp_path])
    found = [one for one in caught.value.exceptions if isinstance(one, PolicyError)]
    assert [(Path(one.origin.file).name, one.origin.line, one.code) for one in found] == [
        ("a.yaml", 6, "SG023"),
        ("a.yaml", 7, "SG027"),
        ("b.yaml", 2, "SG011"),
        ("c.yaml", 3, "SG026"),
    ]
    part = caught.value.split(lambda one: isinstance(one, PolicyError) and one.code == "SG023")[0]
    assert isinstance(part, PolicyErrors)


def test_names_possibly_in_a_broken_file_are_not_reported_missing(tmp_path: Path, sound: str) -> None:
    pool, route = sound.split("---\n")
    (tmp_path / "pool.yaml").write_text(pool + "  x: [\n")
    (tmp_path / "route.yaml").write_text(route)
    with pytest.raises(PolicyErrors) as caught:
        load([tmp_path])
    assert [one.code for one in caught.value.exceptions if isinstance(one, PolicyError)] == ["SG011"]


def test_a_pool_with_problems_is_still_a_pool(tmp_path: Path, sound: str) -> None:
    (tmp_path / "a.yaml").write_text(sound.replace("model: llama", "modle: llama"))
    with pytest.raises(PolicyErrors) as caught:
        load([tmp_path])
    codes = [one.code for one in caught.value.exceptions if isinstance(one, PolicyError)]
    assert sorted(codes) == ["SG023", "SG024"]


def test_a_wrong_reference_does_not_wait_for_other_problems(errors_of: Errors) -> None:
    text = POOL + policy("own", "{pools: [chatt, Chat], retries: {attempts: 99}}")
    assert [(error.code, error.path) for error in errors_of(text)] == [
        ("SG031", "spec.pools[0]"),
        ("SG026", "spec.pools[1]"),
        ("SG026", "spec.retries.attempts"),
    ]


def test_route_names_each_pool_once(errors_of: Errors) -> None:
    spare = POOL.replace("chat", "spare").replace("10.0.0", "10.0.1")
    route = """\
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: front}
spec:
  listener: {port: 80}
  pools: [{pool: chat}]
  fallbacks:
    - spare
    - chat
    - spare
"""
    said = [(error.code, error.path, error.message) for error in errors_of(f"{POOL}---\n{spare}---\n{route}")]
    head = f"{POOL}---\n{spare}---\n".count("\n")
    assert said == [
        ("SG039", "spec.fallbacks[1]", f"fallback chat is also a target, in line {head + 6}, and fails with it"),
        ("SG039", "spec.fallbacks[2]", f"duplicate fallback spare; the first is in line {head + 8}"),
    ]


def test_both_places_of_a_duplicate_are_named(tmp_path: Path, sound: str) -> None:
    (tmp_path / "a.yaml").write_text(sound)
    (tmp_path / "b.yaml").write_text(POOL)
    with pytest.raises(PolicyErrors) as caught:
        load([tmp_path])
    (error,) = caught.value.exceptions
    assert isinstance(error, PolicyError)
    assert (error.code, error.origin.file) == ("SG030", str(tmp_path / "b.yaml"))
    assert f"{tmp_path / 'a.yaml'}:3:18" in error.message


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n", "---\n---\n# x\n", "\ufeff"])
def test_empty_files(tmp_path: Path, sound: str, text: str) -> None:
    (tmp_path / "empty.yaml").write_text(text)
    with pytest.raises(PolicyErrors) as caught:
        load([tmp_path])
    assert [one.code for one in caught.value.exceptions if isinstance(one, PolicyError)] == ["SG006"]
    (tmp_path / "sound.yaml").write_text(sound)
    assert [(one.code, str(one.origin)) for one in lint(load([tmp_path]))] == [
        ("SG100", str(tmp_path / "empty.yaml"))
    ]


def test_an_empty_document_between_others_is_nothing(tmp_path: Path, sound: str) -> None:
    assert lint(loaded(tmp_path, f"---\n{sound}---\n")) == ()


def test_no_path_is_an_error() -> None:
    with pytest.raises(PolicyErrors, match="1 problem in policy files"):
        load([])


def test_layers_override_field_by_field(tmp_path: Path) -> None:
    text = (
        POOL
        + policy(
            "default", "{retries: {attempts: 1, backoff: {base: 50ms}}, limits: {maxConcurrent: 9, maxWait: 1s}}"
        )
        + policy("own", "{pools: [chat], retries: {backoff: {max: 1s}}, limits: {maxConcurrent: null}}")
    )
    policies = loaded(tmp_path, text)
    spec = policies.effective["chat"]
    assert (spec.retries.attempts, spec.retries.backoff.base, spec.retries.backoff.max) == (1, 0.05, 1.0)
    assert (spec.limits.max_wait, spec.limits.max_concurrent) == (1.0, None)
    assert spec.breaker.cooldown == 60.0
    assert policies.layers["chat"] == ("default", "own")
    paths = (
        "spec.retries.attempts",
        "spec.retries.backoff.max",
        "spec.limits.maxConcurrent",
        "spec.drain.deadline",
    )
    assert [setter(policies, "chat", path) for path in paths] == ["default", "own", "own", None]


def test_a_default_of_a_block_survives_an_empty_block(tmp_path: Path) -> None:
    spec = loaded(tmp_path, POOL + policy("default", "{limits: {priorities: {interactive: {}}}}")).effective[
        "chat"
    ]
    assert spec.limits.priorities.interactive.share_percent == 90.0


def test_a_contradiction_between_layers_is_found_where_it_was_written(errors_of: Errors) -> None:
    text = (
        POOL
        + policy("default", "{retries: {backoff: {max: 100ms}}}")
        + policy("own", "{pools: [chat], retries: {backoff: {base: 200ms}}}")
    )
    (error,) = errors_of(text)
    assert (error.code, error.path, error.origin.line) == ("SG041", "spec.retries.backoff.max", 11)
    assert "default and own" in error.hint


@pytest.mark.parametrize(
    ("written", "field", "allowed"),
    [
        ("{minCalls: 50}", "windowCalls", "at least 50"),
        ("{windowCalls: 5}", "windowCalls", "at least 8"),
        ("{cooldown: 20m}", "maxCooldown", "at least 20m"),
    ],
)
def test_circuit_breaker_that_could_never_open_is_rejected(
    errors_of: Errors, written: str, field: str, allowed: str
) -> None:
    (error,) = errors_of(POOL + policy("default", f"{{breaker: {written}}}"))
    assert (error.code, error.path, error.allowed) == ("SG041", f"spec.breaker.{field}", allowed)


def test_a_breaker_without_an_error_rate_needs_no_window(tmp_path: Path) -> None:
    text = policy("default", "{breaker: {minCalls: 50, errorRatePercent: 0}}")
    assert loaded(tmp_path, POOL + text).effective["chat"].breaker.min_calls == 50


def test_a_bound_of_its_own_is_not_lost_to_that_of_percent(errors_of: Errors) -> None:
    (error,) = errors_of(POOL + policy("default", "{hedging: {delayQuantilePercent: 0}}"))
    assert (error.code, error.path) == ("SG026", "spec.hedging.delayQuantilePercent")


def test_origins_name_every_field_that_was_written(tmp_path: Path, sound: str) -> None:
    policies = loaded(tmp_path, sound)
    port = policies.origins["EnginePool/chat.spec.endpoints[1].port"]
    assert (Path(port.file).name, port.line, port.column) == ("policy.yaml", 8, 27)
    assert policies.origins["ModelRoute/front"].line == 11
    assert policies.origins["ModelRoute/front.spec.pools[0]"].line == 16
    assert "EnginePool/chat.spec.serviceTime" not in policies.origins
    assert "EnginePool/chat.spec.endpoints[9]" not in policies.origins
    assert "EnginePool/chat.spec.model.x" not in policies.origins
    for key in policies.origins:
        assert policies.origins[key].line > 0
    assert len(list(policies.origins)) == len(policies.origins) > 20
    enclosing = policies.origin("EnginePool", "chat", "spec.endpoints[1].gpus")
    assert enclosing is not None
    assert enclosing.line == 8
    assert policies.origin("EnginePool", "nobody") is None


def test_digest_ignores_comments_and_format(tmp_path: Path, sound: str) -> None:
    first = loaded(tmp_path, sound).digest
    assert loaded(tmp_path, "# a comment\n" + sound.replace("port: 80}", "port:   80 }")).digest == first
    assert loaded(tmp_path, sound.replace("port: 80}", "port: 81}")).digest != first


def test_contents_read_before_load_the_same(tmp_path: Path, sound: str) -> None:
    policies = loaded(tmp_path, sound)
    again = load_contents({tmp_path / "policy.yaml": sound.encode()})
    assert again.digest == policies.digest
    assert again.origins["EnginePool/chat"] == policies.origins["EnginePool/chat"]


def fleet(folder: Path, pools: int, engines: int) -> None:
    for number in range(pools):
        lines = [POOL.replace("chat", f"pool-{number}"), "  endpoints:"]
        lines += [
            f"    - {{address: 10.{number}.0.{one}, port: 8000, zone: z{one % 3}}}" for one in range(engines)
        ]
        (folder / f"{number}.yaml").write_text("\n".join(lines) + "\n")


def test_one_edit_among_a_hundred_files_parses_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet(tmp_path, 100, 100)
    judged: list[bytes] = []
    original = loading.validate_content

    def counted(content: bytes) -> loading.ValidatedFile:
        judged.append(content)
        return original(content)

    monkeypatch.setattr(loading, "validate_content", counted)
    cache = LoadCache()
    before = load([tmp_path], cache)
    assert len(judged) == 100
    judged.clear()
    edited = tmp_path / "7.yaml"
    edited.write_text(edited.read_text().replace("model: llama", "model: qwen"))
    after = load([tmp_path], cache)
    assert len(judged) == 1
    assert after.pools["pool-7"].spec.model == "qwen"
    assert after.pools["pool-8"] is before.pools["pool-8"]


def test_the_cache_forgets_what_is_gone_and_follows_what_moved(tmp_path: Path, sound: str) -> None:
    cache = LoadCache()
    (tmp_path / "a.yaml").write_text(sound)
    load([tmp_path], cache)
    shutil.move(tmp_path / "a.yaml", tmp_path / "b.yaml")
    origin = load([tmp_path], cache).origin("EnginePool", "chat")
    assert origin is not None
    assert Path(origin.file).name == "b.yaml"
    (tmp_path / "b.yaml").write_text(sound + "x: [\n")
    for _ in range(2):  # the second time from memory
        with pytest.raises(PolicyErrors):
            load([tmp_path], cache)


def test_unusable_secret_is_reported_where_it_is_named(tmp_path: Path) -> None:
    tls = "  endpoints: [{address: e.test, port: 1}]\n  tls:\n    secret: engine\n"
    policies = loaded(tmp_path, POOL + tls)
    at = policies.origin("EnginePool", "chat", "spec.tls.secret")
    assert at is not None
    error = unusable_secret(at, "engine", "ca.crt is missing", ["engines"])
    assert (error.code, error.path) == ("SG043", "spec.tls.secret")
    assert str(error.origin).endswith("policy.yaml:8:5")
    assert error.hint == "did you mean engines?"
    assert "ca.crt, and tls.crt" in unusable_secret(at, "engine", "", []).hint
