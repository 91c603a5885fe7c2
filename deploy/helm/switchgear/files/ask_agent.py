"""What a vLLM container asks the agent beside it; one file without dependencies, for it runs in vLLM's image.

    ask_agent.py alive                    liveness probe: 1 only when the agent says that a restart helps
    ask_agent.py drain --deadline 120     preStop: comes back when the engine may be stopped, or at the deadline

An agent that does not answer is no evidence against the engine: a probe that asked the agent's port directly would
restart a healthy engine, which takes minutes, because its agent was restarted, which takes a second.
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=("alive", "drain"))
    parser.add_argument("--agent", default="http://127.0.0.1:18011", metavar="URL")
    parser.add_argument("--deadline", type=float, default=120.0, metavar="SECONDS")
    asked = parser.parse_args()
    return alive(asked.agent) if asked.question == "alive" else drain(asked.agent, asked.deadline)


def alive(agent: str) -> int:
    """0, unless the agent itself says 503."""
    try:
        with urllib.request.urlopen(f"{agent}/livez", timeout=2):  # noqa: S310 -- loopback, by the pod's template
            return 0
    except urllib.error.HTTPError as answer:
        say(answer.read().decode(errors="replace").strip())
        return 1 if answer.code == 503 else 0
    except OSError as error:
        say(f"no agent at {agent} ({error}): nothing is said against the engine")
        return 0


def drain(agent: str, deadline_s: float) -> int:
    """0 when the engine is empty; without an agent, when the control plane has had its time to take it out."""
    until_s = time.monotonic() + deadline_s
    while (left_s := until_s - time.monotonic()) > 0:
        request = urllib.request.Request(f"{agent}/drain?deadline={left_s:.1f}s", data=b"", method="POST")  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=left_s + 5) as response:  # noqa: S310
                answer = json.load(response)
        except urllib.error.HTTPError as refusal:
            say(f"the agent says {refusal.code}: {refusal.read().decode(errors='replace').strip()}")
            return 1
        except (OSError, ValueError) as error:
            # It may be starting again. The control plane sees the pod leave and takes it out by itself.
            say(f"no answer of the agent at {agent} ({error}); asking again")
            time.sleep(min(1.0, max(0.0, until_s - time.monotonic())))
            continue
        say(answer["sentence"])
        return 0 if answer["outcome"] == "drained" else 1
    say(f"no agent for {deadline_s:g} s")
    return 1


def say(sentence: str) -> None:
    sys.stderr.write(f"ask_agent: {sentence}\n")


if __name__ == "__main__":
    sys.exit(main())
