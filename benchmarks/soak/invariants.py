"""What must hold all the while, as functions of what a server says; each gives what is wrong, a sentence each."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def unexplained(engines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Ejected engines without a reason."""
    for one in engines:
        if one["health"] not in (None, "HEALTHY") and not one["reason"]:
            yield f"{one['engine']} is {one['health']} without a reason"


def refused(proxies: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Configuration that a proxy refused: every policy here is one that it can take."""
    for proxy in proxies:
        for kind in proxy["types"]:
            for one in kind["refused"]:
                yield f"{proxy['node']} refused {kind['type']} {one['name']}: {one['reason'][-200:]}"


def behind(proxies: Sequence[Mapping[str, Any]], wanted: int) -> Iterator[str]:
    """Proxies that are missing, or have not what they should have."""
    if len(proxies) < wanted:
        yield f"{len(proxies)} of {wanted} proxies are connected"
    for proxy in proxies:
        for kind in proxy["types"]:
            if kind["state"] != "SYNCED":
                yield f"{proxy['node']}: {kind['type']} is {kind['state']}"


def incomplete(lines: Sequence[str], engines: Sequence[Mapping[str, Any]], kills: int) -> Iterator[str]:
    """What a ledger lacks: whole lines, and of each engine the last change of its health."""
    last: dict[str, str] = {}
    torn = 0
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            torn += 1
            continue
        if event.get("kind") == "health":
            last[event["subject"].get("engine", "")] = event["after"]
    if torn > kills:
        yield f"{torn} lines of the ledger are torn after {kills} kills"
    for one in engines:
        if one["engine"] in last and one["health"] is not None and last[one["engine"]] != one["health"]:
            yield f"{one['engine']} is {one['health']}, and the ledger ends with {last[one['engine']]}"
