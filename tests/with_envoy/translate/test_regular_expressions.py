"""Regular expressions of routes: a policy is refused exactly where a real Envoy refuses its routes."""

import json
import random
import subprocess
from pathlib import Path

import pytest

from chaos.processes import envoy_command
from policies.quantity import MAX_RE2_PROGRAM, parse_re2

pytestmark = pytest.mark.envoy

TYPES = "type.googleapis.com/envoy.extensions.filters"
PARTS = ["a", "[a-z]", ".", r"\d", "(?i)x", "(ab|cd)", r"\pN", "é", "(?:x{3})", "[^/]+", "$", "^"]


def _bootstrap(expression: str) -> str:
    route = {
        "match": {
            "prefix": "/",
            "headers": [{"name": "x", "string_match": {"safe_regex": {"regex": expression}}}],
        },
        "direct_response": {"status": 200},
    }
    manager = {
        "@type": f"{TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "x",
        "route_config": {"virtual_hosts": [{"name": "x", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{TYPES}.http.router.v3.Router"},
            }
        ],
    }
    listener = {
        "name": "x",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
    }
    return json.dumps({"static_resources": {"listeners": [listener]}})


def _envoy_takes(expression: str, folder: Path) -> bool:
    path = folder / "bootstrap.json"
    path.write_text(_bootstrap(expression))
    done = subprocess.run(
        [*envoy_command(path), "--mode", "validate"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 or "error initializing configuration" in done.stderr, done.stderr
    return done.returncode == 0


def _we_take(expression: str) -> bool:
    try:
        parse_re2(expression)
    except ValueError:
        return False
    return True


def _drawn() -> list[str]:
    """Expressions around Envoy's limit, from a seed."""
    drawn = random.Random(5)
    found = []
    for _ in range(14):
        parts = drawn.choices(PARTS, k=drawn.randrange(1, 5))
        found.append("".join(parts) + f"(?:{drawn.choice(PARTS[:6])}){{{drawn.randrange(1, 40)}}}")
    return found


@pytest.mark.parametrize(
    "expression",
    [
        f"x{{{MAX_RE2_PROGRAM - 4}}}",
        f"x{{{MAX_RE2_PROGRAM}}}",
        r"\pL+",
        "(?=a)",
        r"(a)\1",
        "(",
        "[a-z]{1,60}",
        *_drawn(),
    ],
)
def test_policy_takes_the_expressions_that_envoy_takes(expression: str, tmp_path: Path) -> None:
    assert _we_take(expression) == _envoy_takes(expression, tmp_path)
