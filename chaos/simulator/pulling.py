"""What faults do to a simulated site. What it cannot express is refused before anything begins."""

from collections.abc import Iterable
from typing import Final

from chaos.fake_engine.faults import Crash, Fault, Sigterm
from chaos.faults.pulls import BreakEngine, Callers, Freeze, Kill, Part, Pull, Restart, Telemetry
from chaos.scenario.plan import Outage
from chaos.simulator.site import SimulatedSite

_WHY: Final = {
    "Wire": "there are no bytes on its links",
    "Gpu": "its engines have no GPU driver to ask",
    "Reports": "its agents' reports cannot be falsified",
    "Corrupt": "its proxies refuse no configuration",
    "PushPolicy": "its policies never change",
}


class NotSimulatedError(Exception):
    """The simulator cannot express this; the message says what, and why."""


def refuse_unknown(outages: Iterable[Outage], *, agents: bool) -> None:
    """NotSimulatedError where one of these outages does something that has no counterpart in the simulator."""
    for outage in outages:
        for target in outage.targets:
            for pull in outage.fault.pulls(target):
                why = _refusal(pull, agents=agents)
                if why:
                    raise NotSimulatedError(
                        f"the simulator cannot do {outage.id} ({type(outage.fault).__name__}): {why}; "
                        "run it in the lab: switchgear-chaos run"
                    )


def _refusal(pull: Pull, *, agents: bool) -> str:
    if isinstance(pull, Freeze):
        if pull.part is Part.PROXY:
            return "its proxies cannot stand still"
        return "its processes stand still all the time or not at all" if pull.on_share < 1 else ""
    if isinstance(pull, Kill):
        return "its proxies cannot die" if pull.part is Part.PROXY else ""
    if isinstance(pull, Restart) and pull.drain_within_s is not None and agents:
        return "nobody drains its engines"
    if isinstance(pull, BreakEngine | Restart | Callers | Telemetry):
        return ""
    return _WHY[type(pull).__name__]


class Pulling:
    """``pull`` and ``release`` what a fault does; several on one engine hold one after another."""

    def __init__(self, site: SimulatedSite) -> None:
        self._site = site
        self._faults: dict[str, list[tuple[Pull, Fault]]] = {}

    def pull(self, pull: Pull) -> None:
        """Do it."""
        site = self._site
        if isinstance(pull, BreakEngine):
            self._break(pull.engine, pull, pull.fault)
        elif isinstance(pull, Restart):
            self._break(pull.engine, pull, Sigterm(shutdown_timeout_s=pull.shutdown_timeout_s))
        elif isinstance(pull, Callers):
            site.callers.pull(pull)
        elif isinstance(pull, Telemetry):
            if site.control_plane is not None:
                site.control_plane.hearing.spoilt[pull.proxy] = pull
        elif isinstance(pull, Kill):
            self._kill(pull)
        elif isinstance(pull, Freeze):
            self._freeze(pull, frozen=True)

    def release(self, pull: Pull) -> None:
        """Take it back."""
        site = self._site
        if isinstance(pull, BreakEngine | Restart):
            self._heal(pull.engine, pull)
        elif isinstance(pull, Callers):
            site.callers.release(pull)
        elif isinstance(pull, Telemetry):
            if site.control_plane is not None:
                site.control_plane.hearing.spoilt.pop(pull.proxy, None)
        elif isinstance(pull, Kill):
            self._revive(pull)
        elif isinstance(pull, Freeze):
            self._freeze(pull, frozen=False)

    def _break(self, engine: str, pull: Pull, fault: Fault) -> None:
        self._faults.setdefault(engine, []).append((pull, fault))
        self._site.engines[engine].break_(fault)

    def _heal(self, engine: str, pull: Pull) -> None:
        held = self._faults.get(engine, [])
        found = next((one for one in held if one[0] == pull), None)
        if found is not None:
            held.remove(found)
            self._site.engines[engine].break_(held[-1][1] if held else None)

    def _kill(self, pull: Kill) -> None:
        if pull.part is Part.ENGINE:
            self._break(pull.target, pull, Crash())
        elif pull.part is Part.AGENT and pull.target in self._site.agents:
            self._site.agents[pull.target].kill()
            # A broken stream is known at once.
            self._site.probers[pull.target].start()
        elif pull.part is Part.CONTROL_PLANE and self._site.control_plane is not None:
            self._site.control_plane.stop()

    def _revive(self, pull: Kill) -> None:
        if pull.stays_dead:
            return
        if pull.part is Part.ENGINE:
            self._heal(pull.target, pull)
        elif pull.part is Part.AGENT and pull.target in self._site.agents:
            self._site.agents[pull.target].start()
            self._site.hear_agent(pull.target, heard=True)
        elif pull.part is Part.CONTROL_PLANE and self._site.control_plane is not None:
            self._site.control_plane.start(afresh=True)

    def _freeze(self, pull: Freeze, *, frozen: bool) -> None:
        site = self._site
        if pull.part is Part.ENGINE:
            site.engines[pull.target].freeze(frozen)
        elif pull.part is Part.AGENT and pull.target in site.agents:
            agent = site.agents[pull.target]
            if frozen:
                agent.stop()
            else:
                agent.go_on()
            site.hear_agent(pull.target, heard=not frozen)
        elif pull.part is Part.CONTROL_PLANE and site.control_plane is not None:
            if frozen:
                site.control_plane.stop()
            else:
                site.control_plane.start(afresh=False)
