"""Commands that translate once build no validators, and print the same resources as a server would serve."""

import json
import subprocess
import sys

import pytest

from tests.golden.golden_case import CASES, ROOT, golden_case
from xds_server.translate.envoy_json import as_json

_ALL_CASES = """
import json
from xds_server.cli.light_messages import allow_light_messages, light_messages
allow_light_messages()
with light_messages():
    from tests.golden.golden_case import CASES, golden_case
    from xds_server.translate.envoy_json import as_json
cases = {case: [as_json(item) for item in golden_case(case).resources] for case in CASES}
print(json.dumps(cases))
"""

_COMMAND = """
import json, sys
from xds_server.cli import entry
try:
    entry()
except SystemExit:
    pass
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from xds_server.wire import encode
print(json.dumps({
    "validators": hasattr(Cluster, "__pydantic_validator__"),
    "structlog": "structlog" in sys.modules,
    "encoders": encode._derived.cache_info().currsize,
}))
"""


def _python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return done.stdout


def test_light_messages_translate_every_golden_case_alike():
    light = json.loads(_python(_ALL_CASES))
    assert light == {case: [as_json(item) for item in golden_case(case).resources] for case in CASES}


@pytest.mark.parametrize("command", ["translate", "diff"])
def test_command_builds_no_validators_and_no_encoders(command: str):
    policy = "policies/examples/single-pool.yaml"
    old = "policies/examples/three-zones.yaml"
    files = ["-f", policy, *(["--against", old] if command == "diff" else [])]
    out = _python(_COMMAND, command, *files)
    assert json.loads(out.splitlines()[-1]) == {"validators": False, "structlog": False, "encoders": 0}
