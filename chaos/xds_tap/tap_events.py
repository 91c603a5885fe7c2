"""Messages recorded by the xDS tap, as events of a history."""

import json
from collections.abc import Iterable

from chaos.history.history_events import ConfigPush, ConfigReply


def tap_events(text: str, began_s: float) -> tuple[ConfigPush | ConfigReply, ...]:
    """Events from the answer of ``GET /seen``; ``began_s`` is the monotonic time of ``at_s`` 0."""
    return tuple(_events(text.splitlines(), began_s))


def _events(lines: Iterable[str], began_s: float) -> Iterable[ConfigPush | ConfigReply]:
    for line in lines:
        said = json.loads(line)
        at_s = float(said["at_s"]) - began_s
        if said["event"] == "pushed":
            yield ConfigPush(at_s=at_s, proxy=said["proxy"], type=said["type"], nonce=said["nonce"])
        else:
            yield ConfigReply(
                at_s=at_s,
                proxy=said["proxy"],
                type=said["type"],
                nonce=said["nonce"],
                error=said.get("error", ""),
            )
