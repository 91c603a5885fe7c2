"""Deadlines of callers: the time that a request has left, as a header states it."""

import re
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from policies.document import Spec, documented_field
from policies.fidelity import lost
from policies.field_targets import FieldTargets, Xds
from policies.quantity import Duration
from policies.resilience.mode import Mode

GRPC_TIMEOUT_HEADER: Final = "grpc-timeout"
"""The header of gRPC, from which Envoy takes the time limit of any request."""

_HEADER: Final = re.compile(r"x-[a-z0-9]+(?:-[a-z0-9]+)*|grpc-timeout")
_RESERVED: Final = ("x-envoy-", "x-forwarded-", "x-switchgear-", "x-request-id")


def parse_deadline_header(value: str) -> str:
    """The text if callers may state a deadline in this header; ValueError says what is allowed."""
    if not _HEADER.fullmatch(value) or value.startswith(_RESERVED):
        msg = (
            f"{value!r} cannot state a deadline: use {GRPC_TIMEOUT_HEADER}, or lower case and the prefix x-, "
            f"except {', '.join(_RESERVED)}"
        )
        raise ValueError(msg)
    return value


def _targets(live: Xds) -> FieldTargets:
    return FieldTargets(
        live=live,
        istio=lost("Istio's routes take no time limit from a header; write an EnvoyFilter"),
        gateway_api=lost("gateways take no time limit from a header"),
    )


class DeadlineForm(StrEnum):
    """How a header states a time."""

    MILLISECONDS = "ms"
    SECONDS = "s"
    GRPC = "grpc"  # a number and a unit: 1500m, 2S


class Deadline(Spec):
    """The header that states a caller's deadline, and what follows from it."""

    header: Annotated[str, Field(max_length=64), AfterValidator(parse_deadline_header)] = documented_field(
        ...,
        "Request header with the time that the caller waits, counted from the arrival of the request: "
        "`grpc-timeout`, or one that begins with x-.",
        targets=_targets(Xds.RDS | Xds.LDS),
    )
    form: DeadlineForm | None = documented_field(
        None,
        "ms, s: a whole number of at most 8 digits. grpc: such a number and a unit, H, M, S, m (ms), u or n. "
        "Default: grpc for grpc-timeout, else ms. Other values are ignored: the request has the time limits of "
        "its route.",
        targets=_targets(Xds.RDS | Xds.LDS),
    )
    max: Duration = documented_field(
        0.0,
        "Longest deadline; a longer one counts as this. 0: the total time limit of the route.",
        unit="duration",
        targets=_targets(Xds.RDS),
        ge=0,
        le=86_400,
    )
    mode: Mode = documented_field(
        Mode.ENFORCE,
        "enforce: refuse at once, with 503, what cannot be answered in time. shadow: refuse nothing; the deadline "
        "is still the time limit.",
        why="a refused request costs no engine, and the caller can go elsewhere while it has time",
        targets=_targets(Xds.RTDS),
    )

    @property
    def form_in_force(self) -> DeadlineForm:
        """How the header states the time."""
        if self.form is not None:
            return self.form
        return DeadlineForm.GRPC if self.header == GRPC_TIMEOUT_HEADER else DeadlineForm.MILLISECONDS

    def limit_s(self, total_s: float) -> float:
        """The longest time that a deadline allows under a route's total time limit; 0 without any."""
        return min((one for one in (self.max, total_s) if one), default=0.0)
