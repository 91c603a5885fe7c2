"""Static answer of a route: what Envoy itself answers at a degradation level, or while no pool serves."""

from typing import Annotated, Final

from pydantic import Field

from policies.document import Spec, documented_field
from policies.fidelity import lost
from policies.field_checks import CelRule
from policies.field_targets import FieldTargets, Xds
from policies.quantity import Duration

MAX_BODY_CHARACTERS: Final = 4096
"""Every proxy of the port holds the body, and each push of its routes carries it."""

WITHOUT_BODY: Final = (204, 205, 304)
"""Statuses whose answers have no body. Source: RFC 9110, 15.3.5, 15.3.6, 15.4.5."""

_ISTIO: Final = lost("Istio has no levels, and does not know when a service has no engine")
_GATEWAY: Final = lost("a gateway has no levels, and does not know when a backend has no engine")
_HOT: Final = FieldTargets(live=Xds.RDS, istio=_ISTIO, gateway_api=_GATEWAY)

MediaType = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[ -~]*)?$", max_length=255)
]
"""Value of ``content-type``: a media type with optional parameters."""


class StaticAnswer(Spec):
    """An answer that needs no engine."""

    from_level: int | None = documented_field(
        None,
        "Degradation level of the first target pool from which every request of the route gets this answer; "
        "absent: at no level.",
        why="no level may replace the answers of engines unless the operator wants it",
        targets=_HOT,
        ge=1,
        le=4,
    )
    when_lost: bool = documented_field(
        True,
        "Give this answer also while no target pool and no fallback that may serve the request has an engine in "
        "rotation.",
        why="the alternative is a refusal with 503",
        targets=_HOT,
        checks=(
            CelRule(
                rule="has(self.fromLevel) || !has(self.whenLost) || self.whenLost",
                message="set fromLevel, or remove whenLost: the answer is never given",
                code="SG040",
                field=".whenLost",
            ),
        ),
    )
    status: int = documented_field(
        503,
        "HTTP status. Those without a body (204, 205, 304) are refused.",
        why="clients of the OpenAI API try again later; a status of 200 is for clients that can use the body",
        targets=_HOT,
        checks=(
            CelRule(
                rule="!has(self.status) || !(self.status in [204, 205, 304])",
                message="an answer with this status has no body",
                code="SG040",
                field=".status",
            ),
        ),
        ge=200,
        le=599,
    )
    content_type: MediaType = documented_field(
        "application/json",
        "Header `content-type`.",
        targets=_HOT,
    )
    retry_after: Duration | None = documented_field(
        None,
        "Header `retry-after`, in whole seconds, rounded up; absent: no header.",
        unit="duration",
        targets=_HOT,
        ge=1,
        le=86_400,
    )
    body: str = documented_field(
        ...,
        "Body, sent as it is: Envoy does not wrap it in an error of the OpenAI API. Streams get it too. The first "
        "static answer of a port changes its listener; later edits and levels do not.",
        targets=FieldTargets(live=Xds.RDS | Xds.LDS, istio=_ISTIO, gateway_api=_GATEWAY),
        min_length=1,
        max_length=MAX_BODY_CHARACTERS,
    )

    def applies_at(self, level: int) -> bool:
        """Whether the whole route answers so at this degradation level."""
        return self.from_level is not None and level >= self.from_level
