"""What a running lab gives to injectors.

An injector is made for one lab and applies the actions that it ``handles``::

    class XInjector:
        handles = (FreezeProcess, KillProcess)
        def __init__(self, site: LabHandles) -> None: ...
        def refusal(self, pull: FaultAction) -> str: ...  # why it cannot; checked before load begins
        async def inject(self, pull: FaultAction) -> None: ...  # on return it takes effect
        async def revert(self, pull: FaultAction) -> None: ...  # on return it is healed; always called

Calls for different targets run concurrently. ``revert`` gets the very value ``inject`` got, and must leave alone
what other actions on the same target still hold. ``chaos.lab.injectors.injector_registry`` lists the injectors.

Processes of ours run between two parts only where an experiment needs them: links (for ``ShapeLink`` with ``end``
``engine`` or ``agent``), one agent tap (for ``FalsifyReports``), and always, where there is a control plane, one
xDS tap. All are started alike: the command, then ``--link NAME=HOST:PORT`` for each connection to pass on, NAME
being ``engine:e0``, ``agent:e0`` or ``xds:p0``. When it listens, its first line on stdout is JSON::

    {"control": "http://127.0.0.1:PORT", "ports": {"engine:e0": 40001, ...}}

Every port is a listener on 127.0.0.1 that stands for the address behind the name. SIGTERM ends the process.
Proxies connect from loopback addresses of their own (``ProxyHandle.address``), so a wire tells them apart by the
address of the peer; the control plane and everybody else come from 127.0.0.1.
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
    """An engine. ``port`` is its own, ``seen_port`` the one that proxies use: the wire's where one is laid.

    ``control`` is its address below the control port of simulated engines (``GET/PUT/DELETE {control}/fault``);
    empty for a real one. ``gpu_file`` is the control file of its agent's NVML double, None without one.
    ``agent_port`` is where its agent itself serves reports, ``agent_http`` where probes and drain; None without.
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
    """An Envoy. Callers ask ``url``; ``address`` is the loopback address that it listens on and connects from."""

    name: str
    zone: str
    demand: float
    url: str
    admin: str
    address: str


class LoadControl(Protocol):
    """The callers of the running experiment, who can be made to ask more; without requests nothing comes of it."""

    def inject(self, callers: ChangeLoad) -> None:
        """From now on callers do what the pull says as well."""

    def revert(self, callers: ChangeLoad) -> None:
        """They no longer do; its ``at_once`` requests leave now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabHandles:
    """One running lab.

    ``posts`` has the place of each process by part and target: ``await post.kill()``, ``post.freeze()``,
    ``post.thaw()``, ``await post.start_again(empty=...)``. An engine whose process a fault kills or freezes has a
    process of its own; other simulated engines share some and have no post.

    ``control_plane`` is its admin address and ``policies`` the file that it reads, both empty or None where the
    subject has none. ``wiretap``, ``wires`` and ``reports`` are the control addresses that those announced, empty
    where they were not needed.
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
    """Where the processes between listen, by the name of the link."""


class InjectionError(RuntimeError):
    """A pull was not done; the message says why."""


class Injector(Protocol):
    """Does pulls of some sorts."""

    handles: ClassVar[tuple[type, ...]]

    def refusal(self, pull: FaultAction) -> str:
        """Why this pull cannot be done in this lab; empty when it can."""

    async def inject(self, pull: FaultAction) -> None:
        """Do it; on return it bites."""

    async def revert(self, pull: FaultAction) -> None:
        """Take it back; on return it is healed."""


InjectorFactory = Callable[[LabHandles], Injector]
