"""The xDS resources, Istio object and Gateway API object that carry a policy field."""

from dataclasses import dataclass
from enum import Flag, auto
from typing import Final

from policies.fidelity import FieldOutcome


class Xds(Flag):
    """The xDS resources that an edit of a field may change, directly or through decisions.

    Source: docs/architecture.md, "Hot and cold".
    """

    NONE = 0
    EDS = auto()
    RTDS = auto()
    SDS = auto()
    RDS = auto()
    ECDS = auto()
    CDS = auto()
    LDS = auto()

    @property
    def cold(self) -> bool:
        """Whether the edit affects live traffic: a changed cluster resets counts, a listener ends streams."""
        return bool(self & (Xds.CDS | Xds.LDS))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the resources; none where proxies receive nothing."""
        return tuple(one.name for one in self if one.name)

    def __str__(self) -> str:
        """The same as text, such as ``RTDS, RDS``."""
        return ", ".join(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTargets:
    """The targets of a field: ``live`` in Switchgear's own Envoys, and the exports."""

    live: Xds
    istio: FieldOutcome
    gateway_api: FieldOutcome


def exported_alike(live: Xds, outcome: FieldOutcome) -> FieldTargets:
    """The targets of a field that both exports treat in the same way."""
    return FieldTargets(live=live, istio=outcome, gateway_api=outcome)


HOT: Final = "hot: requests in flight, counts and ejections survive"
COLD: Final = "cold: a changed cluster forgets its counts and ejections, a changed listener ends its streams"
NOT_SENT: Final = "no resource: proxies do not receive it"


def takes_effect(live: Xds) -> str:
    """One line: the resources that an edit may change, and what that does to live traffic."""
    return f"{live}; {COLD if live.cold else HOT}" if live else NOT_SENT
