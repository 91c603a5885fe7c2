"""``validate --deep``: policies that pass validation and cause outages, played against their pools."""

from pathlib import Path

import pytest

import chaos.consequences
from chaos.consequences import consequences
from policies.load import load, load_contents
from policies.model import PolicySet
from policies.remote_prefill import Stage

EXAMPLES = sorted((Path(__file__).parents[2] / "policies" / "examples").glob("*.yaml"))


def policies(
    spec: str = "", *, slots: tuple[int, ...] = (8, 8, 8, 8), pool: str = "", routed: bool = True
) -> PolicySet:
    endpoints = ", ".join(
        f"{{address: 10.0.0.{place + 1}, port: 8000, slots: {one}}}" for place, one in enumerate(slots)
    )
    documents = [
        f"kind: EnginePool\nmetadata: {{name: chat}}\nspec: {{model: m, {pool} endpoints: [{endpoints}]}}",
        f"kind: ResiliencePolicy\nmetadata: {{name: default}}\nspec: {{{spec}}}",
    ]
    if routed:
        documents.append(
            "kind: ModelRoute\nmetadata: {name: chat}\nspec: {listener: {port: 8080}, pools: [{pool: chat}]}"
        )
    text = "\n---\n".join(f"apiVersion: switchgear.dev/v1alpha1\n{one}" for one in documents)
    return load_contents({Path("chat.yaml"): text.encode()})


def found(said: PolicySet) -> dict[str, str]:
    """Messages by code and field."""
    findings, unplayed = consequences(said)
    assert unplayed == {}
    assert all(one.origin is not None and one.fix for one in findings)
    return {f"{one.code} {one.path}": one.message for one in findings}


@pytest.fixture(autouse=True)
def _on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos.consequences, "LIMIT_S", 120.0)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_example_policies_have_no_bad_consequences(file: Path) -> None:
    policies = load([file])
    found, unplayed = consequences(policies)
    assert found == ()
    # No route sends its requests to a prefill pool.
    assert set(unplayed) == {name for name, pool in policies.pools.items() if pool.spec.stage is Stage.PREFILL}


def test_default_policies_have_no_bad_consequences() -> None:
    assert found(policies()) == {}


@pytest.mark.parametrize(
    ("spec", "slots", "path", "says"),
    [
        ("limits: {maxConnections: 1}", (32,), "maxConnections", "with maxConnections 1 this pool serves 2 of 32"),
        (
            "limits: {maxConnections: 1}",
            (8,),
            "maxConnections",
            "serves 2 of 8 requests at once, one per slot; 6 get 503",
        ),
        # Envoy opens one connection to each host, whatever the limit.
        ("limits: {maxConnections: 1}", (8, 8, 8, 8), "maxConnections", "serves 5 of 32"),
        ("limits: {maxConcurrent: 8}", (8, 8, 8, 8), "maxConcurrent", "serves 8 of 32"),
    ],
)
def test_slots_that_limits_keep_from_requests_are_found(
    spec: str, slots: tuple[int, ...], path: str, says: str
) -> None:
    assert says in found(policies(spec, slots=slots))[f"SG180 spec.limits.{path}"]


@pytest.mark.parametrize(
    ("statuses", "slots", "says"),
    [
        ("[404, 500]", (8, 8), "a loop of 404s by one caller leaves 1 of 2 engines in rotation"),
        ("[404, 429, 503]", (8, 8, 8, 8), "a loop of 404s by one caller leaves 2 of 4 engines in rotation"),
        ("[422]", (8, 8), "a loop of 422s"),
    ],
)
def test_caller_that_ejects_engines_is_found(statuses: str, slots: tuple[int, ...], says: str) -> None:
    assert (
        says
        in found(policies(f"breaker: {{countStatuses: {statuses}}}", slots=slots))[
            "SG181 spec.breaker.countStatuses"
        ]
    )


@pytest.mark.parametrize(
    "probe", ["{interval: 10s}", "{interval: 10s, stallAfter: 1s}", "{interval: 60s, timeout: 30s}"]
)
def test_probe_that_misses_its_promise_is_found(probe: str) -> None:
    message = found(policies(pool=f"probe: {probe},"))["SG182 spec.probe.interval"]
    assert "a hung engine stays in rotation for" in message
    assert message.endswith("probe.stallAfter promises 1s")


def test_hang_without_probe_is_found() -> None:
    assert "SG182 spec.probe.enabled" in found(policies(pool="probe: {enabled: false},"))


def test_restart_that_loses_requests_is_found() -> None:
    message = found(policies("limits: {maxConcurrent: 8}"))["SG183 spec.limits.maxConcurrent"]
    assert "one restart at 80 % load: " in message


def test_pool_that_cannot_be_played_is_named() -> None:
    findings, unplayed = consequences(policies(routed=False))
    assert findings == ()
    assert list(unplayed) == ["chat"]
    assert "route" in unplayed["chat"]


def test_pool_beyond_the_time_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos.consequences, "LIMIT_S", 0.0)
    assert consequences(policies("limits: {maxConnections: 1}")) == ((), {"chat": "time limit of 0 s"})
