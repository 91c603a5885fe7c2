"""Probe and preStop hook of a vLLM container; a single file without dependencies, as it runs in vLLM's image.

    ask_agent.py alive                    liveness probe: exit 1 only if the agent asks for a restart
    ask_agent.py drain --deadline 120     preStop: return when the engine is drained, or at the deadline

An unreachable agent passes the liveness probe. A probe of the agent's port would restart a healthy engine
(minutes) because its agent restarted (a second).
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
    parser.add_argument("--ca", metavar="FILE", help="CA bundle for an https agent")
    parser.add_argument("--name", default="", help="DNS name in its certificate (default: its host)")
    parser.add_argument("--deadline", type=float, default=120.0, metavar="SECONDS")
    args = parser.parse_args()
    agent = Agent(args.agent, args.ca, args.name)
    return alive(agent) if args.question == "alive" else drain(agent, args.deadline)


class Agent:
    """The agent in this pod; connection errors are OSError."""

    def __init__(self, url: str, ca: "str | None", name: str) -> None:
        self.url = url
        parts = urllib.parse.urlsplit(url)
        self.secure = parts.scheme == "https"
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 18011
        self.ca, self.name = ca, name or self.host

    def ask(self, method: str, path: str, timeout_s: float) -> "tuple[int, str]":
        """Return HTTP status and body."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            if self.secure:
                # Loaded per request: certificates rotate.
                context = ssl.create_default_context(cafile=self.ca)
                plain = socket.create_connection((self.host, self.port), timeout_s)
                # Connect to an address, verify a name.
                connection.sock = context.wrap_socket(plain, server_hostname=self.name)
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace").strip()
        except http.client.HTTPException as error:
            raise OSError(f"no HTTP: {error!r}") from error
        finally:
            connection.close()


def alive(agent: Agent) -> int:
    """1 if the agent answers 503, else 0."""
    try:
        status, text = agent.ask("GET", "/livez", 2)
    except OSError as error:
        log(f"no agent at {agent.url} ({error}): engine passes")
        return 0
    if status != 200:
        log(text)
    return 1 if status == 503 else 0


def drain(agent: Agent, deadline_s: float) -> int:
    """0 when the engine is drained; 1 at the deadline or on an error."""
    until_s = time.monotonic() + deadline_s
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            status, text = agent.ask("POST", f"/drain?deadline={left_s:.1f}s", left_s + 5)
            answer = json.loads(text) if status == 200 else {}
        except (OSError, ValueError) as error:
            # It may be restarting. The control plane drains a terminating pod anyway.
            log(f"agent at {agent.url} does not answer ({error}); retrying")
            time.sleep(min(1.0, max(0.0, until_s - time.monotonic())))
            continue
        if status != 200:
            log(f"agent answered HTTP {status}: {text}")
            return 1
        log(answer["sentence"])
        return 0 if answer["outcome"] == "drained" else 1
    log(f"no agent within {deadline_s:g} s")
    return 1


def log(sentence: str) -> None:
    sys.stderr.write(f"ask_agent: {sentence}\n")


if __name__ == "__main__":
    sys.exit(main())
