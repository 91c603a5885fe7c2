"""Charts and units of earlier versions start the programs of today, but for the renamed flags."""

import argparse
import json
from pathlib import Path

from engine.agent.cli import parser
from xds_server.cli.serve import command as serve

RENAMED = {"--policies": "--filename", "--context": "--kube-context"}


def test_server_keeps_its_flags(then: Path) -> None:
    known = {flag for one in serve.params for flag in one.opts}
    recorded = {RENAMED.get(flag, flag) for flag in json.loads((then / "flags.json").read_text())["serve"]}
    assert recorded <= known | {"--help"}


def test_agent_keeps_its_flags(then: Path) -> None:
    (commands,) = [one for one in parser()._actions if isinstance(one, argparse._SubParsersAction)]
    known = {flag for one in commands.choices["run"]._actions for flag in one.option_strings}
    assert set(json.loads((then / "flags.json").read_text())["agent"]) <= known
