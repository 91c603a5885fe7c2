"""A hint works when it is applied as written, and keeps the value that the author meant."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.findings import PolicyError, PolicyErrors
from policies.load import load_contents
from policies.yaml_text import parse

POLICY = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata:
  name: {name}
spec:
  model: {model}
  slotsPerEngine: {slots}
  serviceTime: {time}
  firstTokenGate: {gate}
  probe:
    metricsPath: {path}
  endpoints:
    - address: {address}
      port: {port}
      zone: {zone}
---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {{name: own}}
spec:
  pools: {pools}
  breaker:
    errorRatePercent: {percent}
  retries:
    statuses: {statuses}
"""
SOUND = {
    "name": "chat", "model": "m", "slots": "8", "time": "2s", "gate": "false", "path": "/metrics",
    "address": "10.0.0.1", "port": "80", "zone": "a", "pools": "[chat]", "percent": "50", "statuses": "[503]",
}  # fmt: skip
PATHS = {
    "name": "metadata.name", "model": "spec.model", "slots": "spec.slotsPerEngine", "time": "spec.serviceTime",
    "gate": "spec.firstTokenGate", "path": "spec.probe.metricsPath", "address": "spec.endpoints[0].address",
    "port": "spec.endpoints[0].port", "zone": "spec.endpoints[0].zone", "pools": "spec.pools",
    "percent": "spec.breaker.errorRatePercent", "statuses": "spec.retries.statuses",
}  # fmt: skip
_WRITE = re.compile(r'write (?!a )("(?:[^"\\]|\\.)*"|\[.*?\]|[^\s;,]+)')


def errors_in(field: str, written: str) -> list[PolicyError]:
    """Problems of the field when the file has ``written`` in its place."""
    text = POLICY.format(**{**SOUND, field: written})
    try:
        load_contents({Path("policy.yaml"): text.encode()})
    except PolicyErrors as group:
        errors = [error for error in group.exceptions if isinstance(error, PolicyError)]
        return [error for error in errors if error.path.startswith(PATHS[field]) or not error.path]
    return []


def suggested(error: PolicyError) -> str:
    """The YAML that the hint of the error tells to write; empty where it tells none."""
    found = _WRITE.match(error.hint)
    return found.group(1) if found else ""


@pytest.mark.parametrize(
    ("field", "written", "replacement"),
    [
        ("model", "1.10", '"1.10"'),
        ("model", "0x1F", '"0x1F"'),
        ("model", "1e3", '"1e3"'),
        ("model", "True", '"True"'),
        ("zone", "2", '"2"'),
        ("percent", "50%", "50"),
        ("percent", "'12.5 %'", "12.5"),
        ("percent", "'1,5'", "1.5"),
        ("slots", "'1,000'", "1000"),
        ("slots", "8.0", "8"),
        ("slots", "'008'", "8"),
        ("slots", "'8'", "8"),
        ("time", "1.50", "1.50s"),
        ("time", "5 seconds", "5s"),
        ("time", "1m 30s", "1m30s"),
        ("time", "1 day", ""),  # too long for this field
        ("time", "2 min", "2m"),
        ("gate", "yes", "true"),
        ("gate", "0", "false"),
        ("name", "Chat_Pool", "chat-pool"),
        ("name", "-chat-", "chat"),
        ("path", "metrics", "/metrics"),
        ("address", "http://gpu:8000/v1", "gpu"),
        ("pools", "chat", "[chat]"),
        ("pools", "chat, small", "[chat, small]"),
        ("pools", "Chat_Pool", ""),
        ("statuses", "503", "[503]"),
    ],
)
def test_hint_names_the_replacement(field: str, written: str, replacement: str) -> None:
    (error,) = errors_in(field, written)
    assert suggested(error) == replacement
    assert not replacement or not [one for one in errors_in(field, replacement) if one.code != "SG031"]


@pytest.mark.parametrize(
    ("field", "written"),
    [("model", "{{ .Values.model }}"), ("port", "{{ .Values.port }}"), ("port", "'{{ .Values.port }}'")],
)
def test_template_is_rendered_first(field: str, written: str) -> None:
    hints = {error.hint for error in errors_in(field, written) if error.code != "SG017"}
    assert hints == {"render the template first: helm template . | switchgear validate -f -"}


def test_syntax_error_in_a_template_names_helm() -> None:
    text = "{{- if .Values.chat }}\nkind: EnginePool\n{{- end }}\n"
    assert "helm template" in parse(text).problems[0].hint


SCALARS = st.one_of(
    st.integers(-10, 10**6).map(str),
    st.floats(0, 1e4, allow_nan=False).map(lambda value: f"{value:.3f}"),
    st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,2}0)?( ?%| ?(ms|s|sec|min|hours|d))?", fullmatch=True),
    st.from_regex(r"[0-9]{1,3}(,[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(["yes", "No", "true", "OFF", "1.10", "0x10", "1e3", ".5", "+7", "007", "1_000"]),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_. -]{0,20}", fullmatch=True).map(str.strip),
)


@given(field=st.sampled_from(sorted(SOUND)), scalar=SCALARS, quoted=st.booleans())
@example(field="model", scalar="1.10", quoted=False)
@example(field="percent", scalar="1,5", quoted=True)
def test_hint_works_and_keeps_the_value(field: str, scalar: str, quoted: bool) -> None:
    written = f'"{scalar}"' if quoted else scalar
    for error in errors_in(field, written):
        replacement = suggested(error)
        if not replacement or error.path != PATHS[field]:
            continue
        left = [one for one in errors_in(field, replacement) if one.code not in ("SG031", "SG039")]
        assert not left, f"{written} -> {replacement}: {left}"
        value = parse(replacement).documents[0].value
        if isinstance(value, str) and field in ("model", "zone") and not quoted:
            assert value == scalar
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            assert float(value) == pytest.approx(_number(scalar))


def _number(text: str) -> float:
    text = text.removesuffix("%").strip()
    if re.fullmatch(r"[0-9]+,[0-9]{1,2}", text):
        return float(text.replace(",", "."))
    return float(int(text, 0)) if text.startswith("0x") else float(text.replace(",", "").replace("_", ""))
