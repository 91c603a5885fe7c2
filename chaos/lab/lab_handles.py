"""Handles of a running lab, for injectors.

An injector belongs to one lab and applies the actions that it ``handles``::

    class XInjector:
        handles = (FreezeProcess, KillProcess)
        def __init__(self, site: LabHandles) -> None: ...
        def refusal(self, pull: FaultAction) -> str: ...  # why it cannot; checked before the load starts
        async def inject(self, pull: FaultAction) -> None: ...  # in effect on return
        async def revert(self, pull: FaultAction) -> None: ...  # healed on return; always called

Calls for different targets run concurrently. ``revert`` gets the same value as ``inject`` and must not undo other
active actions on the target. ``chaos.lab.injectors.injector_registry`` lists the injectors.

Relay processes run only if the experiment needs them: netem links (for ``ShapeLink`` with ``end`` ``engine`` or
``agent``) and one agent tap (for ``FalsifyReports``). A lab with a control plane always has one xDS tap. All take
``--link NAME=HOST:PORT`` per relayed connection; NAME is ``engine:e0``, ``agent:e0`` or ``xds:p0``. Once it
listens, its first line on stdout is JSON::

    {"control": "http://127.0.0.1:PORT", "ports": {"engine:e0": 40001, ...}}

Each port listens on 127.0.0.1 and relays to the address of the link. SIGTERM ends the process. Proxies connect
from their own loopback addresses (``ProxyHandle.address``), so links identify them by peer address; the control
plane and all others connect from 127.0.0.1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

import aiohttp

from chaos.faults.actions import ChangeLoad, FaultAction, ProcessRole
from chaos.lab.process_slot import ProcessSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHandle:
    """An engine. ``port`` is its own; ``seen_port`` is the one that proxies use, that of the netem link if any.

    ``control`` is its control URL (``GET/PUT/DELETE {control}/fault``), empty for a real engine. ``gpu_file`` is
    the control file of its agent's NVML double. ``agent_port`` is its agent's report port, ``agent_http`` the port
    for probes and drain. Each is None without an agent or double.
    """

    name: str
    zone: str
    slots: int
    slowness: float
    pool: str
    port: int
    seen_port: int
    control: str = ""
    agent_port: int | None = None
    agent_http: int | None = None
    gpu_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyHandle:
    """An Envoy. Callers use ``url``; ``address`` is the loopback address it listens on and connects from."""

    name: str
    zone: str
    demand: float
    url: str
    admin: str
    address: str


class LoadControl(Protocol):
    """Control of the running experiment's load; without a load it has no effect."""

    def inject(self, callers: ChangeLoad) -> None:
        """Apply the load change."""

    def revert(self, callers: ChangeLoad) -> None:
        """Undo the load change; send its ``at_once`` requests now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabHandles:
    """One running lab.

    ``posts`` has each process slot by role and target. An engine whose process a fault kills or freezes has its
    own process; other simulated engines share processes and have no slot.

    ``control_plane`` is its admin address and ``policies`` its policy file; empty and None without a control
    plane. ``wiretap``, ``wires`` and ``reports`` are the control URLs of the xDS tap, netem and the agent tap;
    empty if not started.
    """

    engines: Mapping[str, EngineHandle]
    proxies: Mapping[str, ProxyHandle]
    posts: Mapping[tuple[ProcessRole, str], ProcessSlot]
    session: aiohttp.ClientSession
    load: LoadControl
    control_plane: str = ""
    policies: Path | None = None
    wiretap: str = ""
    wires: str = ""
    reports: str = ""
    link_ports: Mapping[str, int] = field(default_factory=dict)
    """Ports of the relay processes by link name."""


class InjectionError(RuntimeError):
    """An action could not be applied; the message has the cause."""


class Injector(Protocol):
    """Applies some kinds of actions."""

    handles: ClassVar[tuple[type, ...]]

    def refusal(self, pull: FaultAction) -> str:
        """Why this lab cannot apply the action; empty if it can."""

    async def inject(self, pull: FaultAction) -> None:
        """Apply the action; in effect on return."""

    async def revert(self, pull: FaultAction) -> None:
        """Undo the action; healed on return."""


InjectorFactory = Callable[[LabHandles], Injector]
