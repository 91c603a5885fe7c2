"""Charts and units of earlier versions start today's programs, except for renamed flags."""

import json
from pathlib import Path

from engine.agent.cli.run import command as run
from xds_server.cli.serve import command as serve

RENAMED = {"--policies": "--filename", "--context": "--kube-context"}


def test_server_keeps_its_flags(then: Path) -> None:
    known = {flag for one in serve.params for flag in one.opts}
    recorded = {RENAMED.get(flag, flag) for flag in json.loads((then / "flags.json").read_text())["serve"]}
    assert recorded <= known | {"--help"}


def test_agent_keeps_its_flags(then: Path) -> None:
    known = {flag for one in run.params for flag in one.opts}
    assert set(json.loads((then / "flags.json").read_text())["agent"]) <= known | {"--help"}
