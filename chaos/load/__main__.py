"""Load from the command line: ``python -m chaos.load --target URL [--target URL ...]``."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from chaos.history.request_outcomes import RequestOutcome, outcome_summary
from chaos.load.open_loop import LoadProfile, run_load
from chaos.load.request_sender import LoadTarget


def main(argv: Sequence[str]) -> int:
    """Send load and print a summary; return 0 if every answer was good, else 1."""
    parser = argparse.ArgumentParser(prog="python -m chaos.load", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--target", action="append", required=True, metavar="URL", help="base URL to send requests to (repeatable)"
    )
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="(%(default)s)")
    parser.add_argument(
        "--streaming-share",
        type=float,
        default=0.5,
        help="share of streaming requests, 0 to 1 (default: %(default)s)",
    )
    parser.add_argument("--max-tokens", type=int, default=16, help="(%(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=16, help="(%(default)s)")
    parser.add_argument(
        "--deadline", type=float, default=10.0, help="seconds to wait for an answer (default: %(default)s)"
    )
    parser.add_argument("--model", help="model name in requests (default: none)")
    parser.add_argument("--path", default="/v1/completions", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    arguments = parser.parse_args(argv)
    profile = LoadProfile(
        targets=tuple(LoadTarget(url=url.rstrip("/")) for url in arguments.target),
        rate_per_s=arguments.rate,
        streaming_share=arguments.streaming_share,
        max_tokens={arguments.max_tokens: 1.0},
        prompt_tokens=arguments.prompt_tokens,
        deadline_s=arguments.deadline,
        model=arguments.model,
        path=arguments.path,
        seed=arguments.seed,
    )
    outcomes: list[RequestOutcome] = []
    cpu_before_s = time.process_time()
    asyncio.run(run_load(profile, outcomes.append, seconds=arguments.seconds))
    cpu_s = time.process_time() - cpu_before_s
    result = {**asdict(outcome_summary(outcomes)), "generator_cpu_s": cpu_s}
    if arguments.json:
        print(json.dumps(result))  # noqa: T201 -- the answer
    else:
        print("\n".join(f"{name:24} {_readable(value)}" for name, value in result.items()))  # noqa: T201
    return 0 if outcomes and all(outcome.ok for outcome in outcomes) else 1


def _readable(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
    return str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
