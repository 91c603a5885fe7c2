"""``python -m tests.cluster_double``: a double of a Kubernetes API server on a free port of this machine.

When it listens, one line of JSON goes to stdout::

    {"double": true, "server": "http://127.0.0.1:…", "kubeconfig": PATH, "control": "http://127.0.0.1:…/_double"}

SIGTERM and SIGINT end it, and everything that it kept.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.cluster_double import rules
from tests.cluster_double.asking import Request
from tests.cluster_double.json_object import Object
from tests.cluster_double.serving import BOOKMARK_EVERY_S, ClusterDouble


def main(argv: Sequence[str]) -> int:
    """Run until SIGTERM; 0, or 2 for an invalid definition."""
    arguments = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="switchgear-cluster-double-") as folder:
        return asyncio.run(_serve(arguments, Path(folder)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster_double",
        description="Fake Kubernetes API server for tests: no pods, no authorization, no persistence.",
    )
    parser.add_argument("--port", type=int, default=0, help="0 for any free one (default)")
    parser.add_argument("--kubeconfig", type=Path, help="where to write it; a temporary file when absent")
    parser.add_argument(
        "--crds",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="definitions to begin with, or a folder",
    )
    parser.add_argument("--bookmark-every-s", type=float, default=BOOKMARK_EVERY_S, help="(%(default)s)")
    return parser


async def _serve(arguments: argparse.Namespace, folder: Path) -> int:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with ClusterDouble(port=arguments.port, bookmark_every_s=arguments.bookmark_every_s) as double:
        for definition in _definitions(arguments.crds):
            answer = double.ask(
                Request(
                    method="POST",
                    path="/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                    content_type="application/json",
                    body=json.dumps(definition).encode(),
                )
            )
            if answer.code >= 400:
                print(answer.body["message"], file=sys.stderr)  # noqa: T201 -- why it does not start
                return 2
        kubeconfig = double.write_kubeconfig(arguments.kubeconfig or folder / "kubeconfig")
        ready = {
            "double": True,
            "server": double.server,
            "kubeconfig": str(kubeconfig),
            "control": f"{double.server}/_double",
            "rules": rules.asked(),
        }
        print(json.dumps(ready), flush=True)  # noqa: T201 -- the answer, read by the parent process
        await ended.wait()
    return 0


def _definitions(paths: Sequence[Path]) -> list[Object]:
    files = [one for path in paths for one in (sorted(path.glob("*.yaml")) if path.is_dir() else [path])]
    return [said for one in files for said in yaml.safe_load_all(one.read_text()) if said]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
