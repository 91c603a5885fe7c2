"""Command line of ``vllm serve`` for the stand-in of vLLM."""

import argparse
import sys
from collections.abc import Sequence

from chaos.cli import main as switchgear_chaos


def main(argv: Sequence[str]) -> int:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="vllm")
    parser.add_argument("command", choices=("serve",))
    parser.add_argument("model")
    parser.add_argument("--port", required=True)
    parser.add_argument("--enable-server-load-tracking", action="store_true")
    parser.add_argument("--middleware", choices=("first_token_gate.FirstTokenGate",))
    options = parser.parse_args(argv)
    gate = "--no-gate" if options.middleware is None else "--gate"
    return switchgear_chaos(["engine", options.model, "--port", options.port, gate])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
