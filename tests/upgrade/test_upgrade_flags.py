"""Charts and units of earlier versions start the programs of today: no flag of theirs is gone."""

import argparse
import json
from pathlib import Path

from engine.agent.cli import parser
from xds_server.cli.serve import command as serve


def test_flags_of_the_server(then: Path) -> None:
    known = {flag for one in serve.params for flag in one.opts}
    assert set(json.loads((then / "flags.json").read_text())["serve"]) <= known | {"--help"}


def test_flags_of_the_agent(then: Path) -> None:
    (commands,) = [one for one in parser()._actions if isinstance(one, argparse._SubParsersAction)]
    known = {flag for one in commands.choices["run"]._actions for flag in one.option_strings}
    assert set(json.loads((then / "flags.json").read_text())["agent"]) <= known
