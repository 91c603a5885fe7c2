"""No secret leaves the site, but the shape of data stays."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.diagnosis.redaction import GONE, data, text

SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "said",
    [
        f"http://ann:{SECRET}@engine:8000/v1",
        f"GET /v1?api_key={SECRET}&x=1",
        f"Authorization: Bearer {SECRET}",
        f"it sent Bearer {SECRET} and failed",
        f"password={SECRET}",
        f'  "apiKey": "{SECRET}"',
        f"key sk-{SECRET} was refused",
        f"HF_TOKEN={SECRET}",
        f"rotating token: {SECRET}",
        f"bob:pw={SECRET}",
        f"vllm serve m --api-key {SECRET} --port 1",
        f"--token={SECRET}",
        f"hf_{SECRET}",
        f"eyJhbGciOiJI.eyJzdWIiOiIx{SECRET}.abc",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"-----BEGIN EC PRIVATE KEY-----\n{SECRET}",
    ],
)
def test_text_is_redacted(said: str) -> None:
    assert SECRET not in text(said)
    assert GONE in text(said)


@pytest.mark.parametrize(
    "said",
    [
        {"password": SECRET},
        {"authorization": {"credential": [SECRET]}},
        {"labels": {"owner": SECRET}},
        {"annotations": {"a": {"b": [SECRET]}}},
        {"match": {"headers": [{"name": "x-team", "exact": SECRET}]}},
        {"headers": [{"name": "x-team", "string_match": {"exact": SECRET}}]},
        {"headers": {"x-team": SECRET}},
        {"mutations": [{"append": {"header": {"key": "x-team", "value": SECRET}}}]},
        {"set": [{"key": "x-api-key", "value": SECRET}, {"key": "x-api-key", "raw_value": SECRET}]},
        {"one": {"name": "API_TOKEN", "value": SECRET}},
        {"metadata": {"filter_metadata": {"envoy.lb": {"tenant": SECRET}}}},
        {"request_headers_to_add": [{"header": {"key": "x", "value": SECRET}}]},
        {"api_key": 12345678},
        {"url": f"https://{SECRET}:x@host/"},
    ],
    ids=json.dumps,
)
def test_data_keeps_its_shape(said: Any) -> None:
    gone = json.dumps(data(said))
    assert SECRET not in gone
    assert "12345678" not in gone
    assert GONE in gone
    assert list(data(said)) == list(said)


def test_non_secrets_are_kept() -> None:
    said = {
        "tokens_per_s": 12.5,
        "time_per_output_token": {"p99_s": 0.1},
        "firstTokenGate": True,
        "engine": "chat/a1",
        "headers": [{"name": "x-team"}],
        "evidence": "connection refused at 127.0.0.1:8000",
        "slow": "time_per_output_token: 0.123456 s, first token: 1.5",
        "hung": "no token for 5 s",
        "secret": None,
    }
    assert data(said) == said


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    )
)
def test_label_values_are_removed(said: Any) -> None:
    def leaves(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [leaf for one in value.values() for leaf in leaves(one)]
        return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list) else [value]

    assert all(leaf in (GONE, None, True, False) for leaf in leaves(data({"labels": {"x": said}})))
