"""Discovery of engines in a cluster: the pods of a pool, and their ports."""

import re
from typing import Annotated, Any, Final

from pydantic import Field, PlainValidator, WithJsonSchema

from policies.document import Spec, documented_field
from policies.fidelity import approximated, kept, lost
from policies.field_checks import CelRule
from policies.field_targets import FieldTargets, Xds
from policies.findings import Finding, PolicyError
from policies.origin import WHOLE_FILE, origin
from policies.quantity import Name

PORT_NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_PORT_NAME: Final = re.compile(PORT_NAME_PATTERN)


def parse_pod_port(value: Any) -> int | str:
    """A port number or name; ValueError says what is allowed."""
    if isinstance(value, int) and not isinstance(value, bool):
        if 1 <= value <= 65535:
            return value
        msg = f"{value} is not a port"
        raise ValueError(msg)
    if isinstance(value, str) and value.isdecimal():
        msg = f"{value!r} is text: write the number {value} without quotes"
        raise ValueError(msg)
    if isinstance(value, str) and _PORT_NAME.fullmatch(value):
        return value
    msg = f"{value!r} is not a port: write its number, or its name in lower-case letters, digits and dashes"
    raise ValueError(msg)


PodPort = Annotated[
    int | str,
    PlainValidator(parse_pod_port),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": 65535},
                {"type": "string", "pattern": PORT_NAME_PATTERN},
            ],
            "x-type": "number or name",
            "x-allowed": "a port number, 1 to 65535, or the name of a port",
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""A port of a pod, by number or by its name in the Service or the pod."""


class Discovery(Spec):
    """Pods that are engines of the pool: behind a Service, or with these labels."""

    service: Name | None = documented_field(
        None,
        "Service in the pool's namespace whose EndpointSlices list the engines.",
        checks=(
            CelRule(
                rule="has(self.service) != (has(self.selector) && size(self.selector) > 0)",
                message="exactly one of service and selector",
                code="SG040",
            ),
        ),
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS | Xds.LDS,
            istio=kept("the Service's host stands for the pool", "DestinationRule"),
            gateway_api=kept("the Service is the backend", "HTTPRoute"),
        ),
    )
    selector: Annotated[dict[str, str], Field(max_length=64)] = documented_field(
        {},
        "Labels of the engine pods, without a Service.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS | Xds.LDS,
            istio=kept("workloadSelector", "ServiceEntry"),
            gateway_api=approximated(
                "selector.matchLabels; requires an endpoint picker. Envoy Gateway by itself refuses routes to an "
                "InferencePool: set kubernetes.service, or use a gateway with the inference extension",
                "InferencePool",
            ),
        ),
    )
    port: PodPort = documented_field(
        ...,
        "Port of the engines' OpenAI API: a number, or a port name of the Service or the containers.",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=approximated(
                "a number is the Service's port; if it differs, write the port of the Service",
                "VirtualService",
            ),
            gateway_api=kept("targetPorts", "InferencePool"),
        ),
    )
    agent_port: PodPort | None = documented_field(
        None,
        "Port of each engine's agent, number or name; the pod annotation switchgear.dev/agent-port wins.",
        why="without an agent the engine is probed over the network",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=lost("Istio uses no agent; `switchgear istio run` does"),
            gateway_api=lost("a gateway uses no agent"),
        ),
    )


def engine_finding(file: str, message: str) -> Finding:
    """A warning about an engine discovered for the pool in ``file``, which is served without it."""
    return Finding(
        code="SG150",
        origin=origin(file, WHOLE_FILE),
        path="spec.kubernetes",
        message=message,
        fix="correct the pod, its annotations, or the ports of the block",
    )


def rejected_object_finding(file: str, first: PolicyError, *, serving: bool) -> Finding:
    """A warning about a cluster object whose latest spec is refused, with the first reason."""
    instead = "the last accepted spec stays in force" if serving else "not in force"
    return Finding(
        code="SG151",
        origin=origin(file, WHOLE_FILE),
        path=first.path,
        message=f"{instead}: {first.code}: {first.message}",
        fix=first.hint or "correct the object and apply it again",
    )
