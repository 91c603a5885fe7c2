"""Open-loop load: requests leave on a schedule drawn beforehand, whatever becomes of the earlier ones.

A closed loop waits for answers before it sends more, and so hides exactly the overload one wants to see. Here
arrivals are a Poisson process from a seed; a slow fleet meets the same arrivals as a fast one. When the generator
itself cannot keep up it says so: each outcome carries its ``lag_s``.

Measured on one core of a shared 2-core machine, 200 requests/s of 16 tokens: 0.12 of the core without streaming,
0.19 with half of them streams, 0.27 with streams only (about 0.1 ms per event read).

Sending is in ``chaos.sender``; what the outcomes add up to is pure, in ``chaos.outcomes``.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType

from chaos.outcomes import Outcome, summary
from chaos.sender import Arrival, Asking, Sender, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """From ``at_s`` of the schedule on the targets have these weights, in their order."""

    at_s: float
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProfile:
    """What is asked, how often, of whom.

    ``max_tokens`` maps lengths to relative weights. ``deadline_s`` is the client's patience for a whole answer;
    later is a timeout. Streams and whole answers both go to ``path``. ``turns``, by time, change who gets how much
    of the load; the arrivals themselves are the same with and without them.
    """

    targets: tuple[Target, ...]
    rate_per_s: float
    turns: tuple[Turn, ...] = ()
    streaming_share: float = 0.5
    max_tokens: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({16: 1.0}))
    prompt_tokens: int = 16
    deadline_s: float = 10.0
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    path: str = "/v1/completions"
    seed: int = 0

    @property
    def asking(self) -> Asking:
        """How each request is asked."""
        return Asking(deadline_s=self.deadline_s, model=self.model, headers=self.headers, path=self.path)


def schedule(profile: LoadProfile) -> Iterator[Arrival]:
    """Arrivals without end, a Poisson process of ``rate_per_s``; the seed decides all of it."""
    rng = random.Random(profile.seed)  # noqa: S311 -- repeatable traffic, no secret
    lengths, length_weights = list(profile.max_tokens), list(profile.max_tokens.values())
    target_weights = [target.weight for target in profile.targets]
    turns = list(profile.turns)
    at_s, number = 0.0, 0
    while True:
        at_s += rng.expovariate(profile.rate_per_s)
        number += 1
        while turns and turns[0].at_s <= at_s:
            target_weights = list(turns.pop(0).weights)
        yield Arrival(
            at_s=at_s,
            request_id=f"load-{profile.seed}-{number}",
            target=rng.choices(profile.targets, target_weights)[0],
            streaming=rng.random() < profile.streaming_share,
            max_tokens=rng.choices(lengths, length_weights)[0],
            prompt_tokens=profile.prompt_tokens,
        )


async def run_load(
    profile: LoadProfile,
    on_outcome: Callable[[Outcome], None],
    *,
    seconds: float | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Send the schedule for ``seconds`` or until ``stop``; return when every request sent has its outcome.

    ``on_outcome`` is called in the event loop as each request ends, in the order they end. Cancelling cuts the
    requests in flight, without outcomes.
    """
    async with Sender(profile.asking, on_outcome, began_s=time.monotonic(), until_s=seconds, stop=stop) as sender:
        await sender.follow(schedule(profile))


def main(argv: Sequence[str]) -> int:
    """Send load and say what came of it: 0 when every answer was good, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m chaos.load", description=__doc__.splitlines()[0])
    parser.add_argument("--target", action="append", required=True, metavar="URL", help="may be repeated")
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="(%(default)s)")
    parser.add_argument("--streaming-share", type=float, default=0.5, help="0 to 1 (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=16, help="(%(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=16, help="(%(default)s)")
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds for an answer (%(default)s)")
    parser.add_argument("--model", help="left out of the request by default")
    parser.add_argument("--path", default="/v1/completions", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--json", action="store_true", help="the summary as one JSON object")
    arguments = parser.parse_args(argv)
    profile = LoadProfile(
        targets=tuple(Target(url=url.rstrip("/")) for url in arguments.target),
        rate_per_s=arguments.rate,
        streaming_share=arguments.streaming_share,
        max_tokens={arguments.max_tokens: 1.0},
        prompt_tokens=arguments.prompt_tokens,
        deadline_s=arguments.deadline,
        model=arguments.model,
        path=arguments.path,
        seed=arguments.seed,
    )
    outcomes: list[Outcome] = []
    cpu_before_s = time.process_time()
    asyncio.run(run_load(profile, outcomes.append, seconds=arguments.seconds))
    cpu_s = time.process_time() - cpu_before_s
    result = {**asdict(summary(outcomes)), "generator_cpu_s": cpu_s}
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
