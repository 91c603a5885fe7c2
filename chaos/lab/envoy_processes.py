"""The lab's Envoys, each on its own loopback address, and their readiness."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from chaos.faults.actions import ProcessRole
from chaos.lab.process_slot import START_LIMIT_S, ProcessSlot
from chaos.processes import ChildProcesses, envoy_command, free_ports
from chaos.scenario.experiment_plan import ProxyPlacement
from xds_server.envoy_bootstrap import Bootstrap, bootstrap_yaml

ENVOY_DRAIN_TIME_S: Final = 0
"""Flags of every Envoy, as in the README."""

POLL_S: Final = 0.05
_ANSWER_LIMIT_S: Final = 10.0


class NotReadyError(RuntimeError):
    """A part was not ready in time; the message names it."""


def proxy_address(place: int) -> str:
    """Loopback address of a proxy; each has its own, like gateways on separate hosts."""
    return f"127.0.{place // 250}.{place % 250 + 2}"


def xds_bootstrap(spot: ProxyPlacement, address: str, xds_port: int, *, own_source: bool) -> tuple[str, int]:
    """Bootstrap of an Envoy with a control plane, and its admin port.

    ``own_source``: it also connects from its own address, so that netem links can identify it.
    """
    (admin,) = free_ports(1)
    text = bootstrap_yaml(
        Bootstrap(
            node=spot.name,
            zone=spot.zone,
            region=spot.region,
            servers=[("127.0.0.1", xds_port)],
            admin_port=admin,
            listen_address=address,
        )
    )
    return (bind_to_address(text, address) if own_source else text), admin


def bind_to_address(text: str, address: str) -> str:
    """The bootstrap with this source address in all clusters."""
    said: dict[str, Any] = yaml.safe_load(text)
    source = {"address": address, "port_value": 0}
    said.setdefault("cluster_manager", {})["upstream_bind_config"] = {"source_address": source}
    return yaml.safe_dump(said, sort_keys=False)


async def start_envoy(children: ChildProcesses, folder: Path, name: str, text: str) -> ProcessSlot:
    """Start an Envoy; it restarts with the same bootstrap. It prints no ready line: wait for its pages."""
    path = folder / f"envoy-{name}.yaml"
    path.write_text(text, encoding="utf-8")
    post = ProcessSlot(
        part=ProcessRole.PROXY,
        target=name,
        children=children,
        argv=envoy_command(path, drain_time_s=ENVOY_DRAIN_TIME_S),
        announces=False,
    )
    await post.start()
    return post


async def wait_for_healthy(session: aiohttp.ClientSession, admin: str, pool: str, engines: int) -> None:
    """Wait until the Envoy has this many healthy engines of the pool; raises NotReadyError."""
    await wait_for_page(
        session,
        f"{admin}/clusters?format=json",
        lambda page: _healthy_hosts(page, pool) >= engines,
        f"{engines} healthy engines of {pool} at the Envoy {admin}",
    )


async def wait_for_page(
    session: aiohttp.ClientSession,
    url: str,
    good: Callable[[Any], bool],
    what: str,
    *,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    limit_s: float = START_LIMIT_S,
) -> None:
    """Wait until ``url`` answers 200 with JSON that is ``good``. Sends ``body`` with POST if given."""
    give_up_s = time.monotonic() + limit_s
    seen = "nothing"
    while time.monotonic() < give_up_s:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.request(
                "GET" if body is None else "POST",
                url,
                json=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=_ANSWER_LIMIT_S),
            ) as answer:
                text = await answer.read()
                seen = f"status {answer.status}: {text[:200].decode(errors='replace')}"
                if answer.status == 200 and good(json.loads(text)):
                    return
        await asyncio.sleep(POLL_S)
    raise NotReadyError(f"{what}: not ready after {limit_s:g} s; last answer: {seen}")


def _healthy_hosts(page: Any, pool: str) -> int:
    for cluster in page.get("cluster_statuses", []):
        if cluster["name"] == pool:
            return sum(not _unhealthy(host["health_status"]) for host in cluster.get("host_statuses", []))
    return 0


def _unhealthy(status: Any) -> bool:
    return bool(
        status.get("failed_active_health_check") or status.get("eds_health_status", "HEALTHY") != "HEALTHY"
    )
