"""What a vLLM container asks the agent beside it; one file without dependencies, for it runs in vLLM's image.

    ask_agent.py alive                    liveness probe: 1 only when the agent says that a restart helps
    ask_agent.py drain --deadline 120     preStop: comes back when the engine may be stopped, or at the deadline

An agent that does not answer is no evidence against the engine: a probe that asked the agent's port directly would
restart a healthy engine, which takes minutes, because its agent was restarted, which takes a second.
"""

import argparse
import http.client
import json
import socket
import ssl
import sys
import time
import urllib.parse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=("alive", "drain"))
    parser.add_argument("--agent", default="http://127.0.0.1:18011", metavar="URL")
    parser.add_argument("--ca", metavar="FILE", help="authorities of an agent that is asked by https")
    parser.add_argument("--name", default="", help="DNS name that it has to prove; its host when absent")
    parser.add_argument("--deadline", type=float, default=120.0, metavar="SECONDS")
    asked = parser.parse_args()
    agent = Agent(asked.agent, asked.ca, asked.name)
    return alive(agent) if asked.question == "alive" else drain(agent, asked.deadline)


class Agent:
    """The agent in this pod. What can go wrong between it and us is an OSError."""

    def __init__(self, url: str, ca: "str | None", name: str) -> None:
        self.url = url
        parts = urllib.parse.urlsplit(url)
        self.secure = parts.scheme == "https"
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 18011
        self.ca, self.name = ca, name or self.host

    def ask(self, method: str, path: str, timeout_s: float) -> "tuple[int, str]":
        """Status and text of its answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            if self.secure:
                # Read at each question: certificates rotate.
                context = ssl.create_default_context(cafile=self.ca)
                plain = socket.create_connection((self.host, self.port), timeout_s)
                # It is asked by an address, and proves a name.
                connection.sock = context.wrap_socket(plain, server_hostname=self.name)
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace").strip()
        except http.client.HTTPException as error:
            raise OSError(f"no HTTP: {error!r}") from error
        finally:
            connection.close()


def alive(agent: Agent) -> int:
    """0, unless the agent itself says 503."""
    try:
        status, text = agent.ask("GET", "/livez", 2)
    except OSError as error:
        say(f"no agent at {agent.url} ({error}): nothing is said against the engine")
        return 0
    if status != 200:
        say(text)
    return 1 if status == 503 else 0


def drain(agent: Agent, deadline_s: float) -> int:
    """0 when the engine is empty; without an agent, when the control plane has had its time to take it out."""
    until_s = time.monotonic() + deadline_s
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            status, text = agent.ask("POST", f"/drain?deadline={left_s:.1f}s", left_s + 5)
            answer = json.loads(text) if status == 200 else {}
        except (OSError, ValueError) as error:
            # It may be starting again. The control plane sees the pod leave and takes it out by itself.
            say(f"no answer of the agent at {agent.url} ({error}); asking again")
            time.sleep(min(1.0, max(0.0, until_s - time.monotonic())))
            continue
        if status != 200:
            say(f"the agent says {status}: {text}")
            return 1
        say(answer["sentence"])
        return 0 if answer["outcome"] == "drained" else 1
    say(f"no agent for {deadline_s:g} s")
    return 1


def say(sentence: str) -> None:
    sys.stderr.write(f"ask_agent: {sentence}\n")


if __name__ == "__main__":
    sys.exit(main())
