"""EnginePool: which engines serve which model, and how to ask each of them whether it can produce a token."""

from typing import Final, Literal

from pydantic import model_validator

from policies.discovery import Discovery
from policies.document import (
    API_VERSION,
    OF_THE_KIND,
    OF_THE_NAME,
    OF_THE_VERSION,
    Labels,
    Metadata,
    Spec,
    documented_field,
)
from policies.engine_tls import EngineTls
from policies.fidelity import approximated, kept, lost
from policies.field_checks import CelRule, ListKeys, NullAllowed, ValueLint
from policies.field_targets import FieldTargets, Xds, exported_alike
from policies.quantity import Duration, EngineName, HostAddress, Port, Revision, Zone

_SUMS: Final = "it is in the ceiling as it was when exported; it no longer follows what is measured"
_ISTIO_SUMS: Final = approximated(_SUMS, "DestinationRule")
_GATEWAY_SUMS: Final = approximated(_SUMS, "BackendTrafficPolicy")

_LONGEST_PER_MEAN: Final = 4.0


class Endpoint(Spec):
    """One engine: an address that answers the OpenAI API, where it stands and what it can hold."""

    address: HostAddress = documented_field(
        ...,
        "IP address or host name of the engine, without scheme and port.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.LDS,
            istio=kept("address", "WorkloadEntry"),
            gateway_api=kept("addresses of the endpoint", "EndpointSlice"),
        ),
    )
    port: Port = documented_field(
        ...,
        "Port of the engine's OpenAI API.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.LDS,
            istio=kept("ports.http", "WorkloadEntry"),
            gateway_api=kept("port of the endpoint", "EndpointSlice"),
        ),
    )
    agent_port: Port | None = documented_field(
        None,
        "Port of the agent beside the engine (switchgear-agent), at the same address.",
        why="the engine itself is asked over the network only while its agent is silent",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=lost("Istio asks no agent; `switchgear istio run` does"),
            gateway_api=lost("a gateway asks no agent"),
        ),
    )
    name: EngineName = documented_field(
        "",
        "Name in status, logs and decisions.",
        why="address:port is unique and says where it is",
        checks=(NullAllowed(),),
        targets=FieldTargets(
            live=Xds.EDS | Xds.LDS,
            istio=kept("name of the object; in full in an annotation", "WorkloadEntry"),
            gateway_api=lost("an endpoint is its address"),
        ),
    )
    zone: Zone = documented_field(
        "",
        "Failure domain, as in topology.kubernetes.io/zone.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS,
            istio=kept("locality, and a label to compare with the caller's", "WorkloadEntry"),
            gateway_api=kept("zone of the endpoint", "EndpointSlice"),
        ),
    )
    region: Zone = documented_field(
        "",
        "Region, as in topology.kubernetes.io/region.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS,
            istio=kept("locality, and a label to compare with the caller's", "WorkloadEntry"),
            gateway_api=lost("endpoints have zones only"),
        ),
    )
    revision: Revision = documented_field(
        "",
        "Revision of the model this engine serves, the major number first: 2.1.0, say.",
        why="regions stand in for each other only within a major revision, unless regions.acrossRevisions says "
        "otherwise",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS,
            istio=lost("Istio fails over whatever model revision an engine serves"),
            gateway_api=lost("nothing tells which revision of the model an endpoint serves"),
        ),
    )
    slots: int | None = documented_field(
        None,
        "Requests this engine runs at once; the pool's slotsPerEngine when absent.",
        why="engines of a zone are filled in proportion to their slots",
        unit="requests",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS,
            istio=approximated(
                "weight within the zone, and part of the ceiling; Istio fills by weight, not by free slots",
                "WorkloadEntry",
            ),
            gateway_api=approximated(
                "part of the ceiling; where a pool comes to several backends, also of their weights; "
                "engines are filled by the fewest requests, whatever their slots"
            ),
        ),
        ge=1,
        le=65536,
    )
    weight: int = documented_field(
        1,
        "Share of traffic relative to its peers in the zone.",
        why="equal weights keep Envoy's least-request picking in its accurate mode; say slots for unequal engines",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=kept("weight", "WorkloadEntry"),
            gateway_api=lost("endpoints of a backend are alike"),
        ),
        ge=1,
        le=128,
    )
    gpus: int = documented_field(
        1,
        "GPUs the engine spans; carried along, not interpreted.",
        unit="GPUs",
        targets=exported_alike(
            Xds.NONE, approximated("Switchgear does not interpret it either; objects do not carry it")
        ),
        ge=0,
        le=1024,
    )
    tensor_parallel_group: str = documented_field(
        "",
        "Engines with the same group name share GPUs and fail as one unit.",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=lost("Istio ejects engines one by one; `switchgear istio run` takes out a group as one"),
            gateway_api=lost("engines are ejected one by one"),
        ),
        max_length=253,
    )
    labels: Labels = documented_field(
        {},
        "Labels, shown in status and passed to Envoy as endpoint metadata.",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=approximated("labels, those that Kubernetes takes", "WorkloadEntry"),
            gateway_api=lost("endpoints have no labels"),
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _name_from_address(cls, data: object) -> object:
        if isinstance(data, dict) and not data.get("name") and "address" in data and "port" in data:
            address = f"[{data['address']}]" if ":" in str(data["address"]) else data["address"]
            return {**data, "name": f"{address}:{data['port']}"}
        return data


_PROBED: Final = FieldTargets(
    live=Xds.EDS,
    istio=lost("Istio judges engines by their answers alone; `switchgear istio run` brings live verdicts back"),
    gateway_api=lost("a gateway judges engines by their answers alone"),
)


class Probe(Spec):
    """How the control plane asks an engine for what matters: a token."""

    interval: Duration = documented_field(
        0.5,
        "Time between two looks at an engine.",
        why="a hung engine is out within about two of them; a look costs the engine one token",
        unit="duration",
        targets=_PROBED,
        ge=0.05,
        le=60,
    )
    timeout: Duration = documented_field(
        1.0,
        "How long an idle engine may take for one token.",
        why="an idle engine was seen to need 10 ms; one second leaves room for a long prefill of someone else",
        unit="duration",
        targets=_PROBED,
        ge=0.01,
        le=60,
    )
    stall_after: Duration = documented_field(
        1.0,
        "How long token counters may stand still while requests are in flight before the engine counts as hung.",
        why="above the longest single engine step; raise it for very long prefills",
        unit="duration",
        targets=_PROBED,
        ge=0.1,
        le=600,
    )
    unhealthy_after: int = documented_field(
        2,
        "Bad looks in a row before an engine leaves.",
        why="one lost packet is not a hang",
        targets=_PROBED,
        ge=1,
        le=100,
    )
    healthy_after: int = documented_field(
        1,
        "Good looks in a row before an engine returns.",
        why="recovery known late is what costs most when capacity is short",
        targets=_PROBED,
        ge=1,
        le=100,
    )
    path: Literal["/v1/completions", "/v1/chat/completions"] = documented_field(
        "/v1/completions",
        "API asked for the one-token completion.",
        targets=_PROBED,
    )
    metrics_path: str = documented_field(
        "/metrics", "Where the engine's Prometheus metrics are.", targets=_PROBED, pattern=r"^/[^\s]*$"
    )
    load_path: str = documented_field(
        "/load",
        "Where the engine counts requests in flight (vLLM: --enable-server-load-tracking).",
        why="the only count that still rises when the engine core is stuck",
        targets=_PROBED,
        pattern=r"^/[^\s]*$",
    )
    enabled: bool = documented_field(
        True,
        "Whether to probe at all; without it every engine counts as ready.",
        targets=_PROBED,
        checks=(
            ValueLint(
                code="SG129",
                applies=lambda enabled: not enabled,
                message="engines are not probed: one that hangs while its /health says 200 stays in until "
                "requests time out",
                fix="leave probing on, unless something else reports on these engines",
            ),
        ),
    )


class EnginePoolSpec(Spec):
    """Engines that serve the same model and stand in for each other."""

    model: str = documented_field(
        ...,
        "Model name the engines answer to.",
        targets=exported_alike(
            Xds.RTDS | Xds.RDS,
            approximated("requests keep the model name they have; nobody compares it with the pool's"),
        ),
        min_length=1,
        max_length=253,
    )
    endpoints: tuple[Endpoint, ...] = documented_field(
        (),
        "The engines.",
        # No two engines at one address. Names are no keys: a cluster demands its keys, and names may be absent.
        checks=(ListKeys(("address", "port")),),
        max_length=20_000,
    )
    kubernetes: Discovery | None = documented_field(
        None,
        "Engines found in the cluster, besides those that are listed; read where policies come from a cluster.",
    )
    slots_per_engine: int = documented_field(
        8,
        "Requests one engine runs at once (vLLM: --max-num-seqs).",
        why="small on purpose: overestimating slots by k stretches the promised wait by k",
        unit="requests",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS,
            istio=_ISTIO_SUMS,
            gateway_api=_GATEWAY_SUMS,
        ),
        ge=1,
        le=65536,
    )
    service_time: Duration = documented_field(
        2.0,
        "Mean time one request holds a slot.",
        why="with the allowed wait it sets the admission ceiling: slots x (1 + maxWait / serviceTime)",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=_ISTIO_SUMS,
            gateway_api=_GATEWAY_SUMS,
        ),
        ge=0.001,
        le=3600,
    )
    longest_service_time: Duration | None = documented_field(
        None,
        "Longest time a healthy request may hold a slot; four times serviceTime when absent.",
        why="timeouts below allowed wait plus this kill work that would have succeeded",
        unit="duration",
        checks=(
            CelRule(
                rule="!has(self.longestServiceTime) || duration(self.longestServiceTime) >= "
                "duration(has(self.serviceTime) ? self.serviceTime : '2s')",
                message="the longest service time is at least serviceTime",
                code="SG040",
                field=".longestServiceTime",
            ),
        ),
        targets=exported_alike(
            Xds.EDS | Xds.RDS, approximated("no limit is derived from it; limits are those that the policy gives")
        ),
        ge=0.001,
        le=86400,
    )
    probe: Probe = documented_field(Probe, "How engines are asked whether they can produce a token.")
    first_token_gate: bool = documented_field(
        False,
        "Whether the engines hold response headers until the first token exists.",
        why="stock vLLM sends headers at once; say true only where the gate is installed",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("decides which limits and hedges streams get", "VirtualService"),
            gateway_api=lost("no limit on the first token is exported, with or without the gate"),
        ),
    )
    tls: EngineTls | None = documented_field(
        None,
        "TLS to the engines; plain HTTP when absent.",
    )

    @property
    def longest_s(self) -> float:
        """Longest time a healthy request holds a slot, in seconds."""
        return self.longest_service_time or _LONGEST_PER_MEAN * self.service_time


class EnginePool(Spec):
    """A named pool of engines."""

    api_version: Literal["switchgear.dev/v1alpha1"] = documented_field(
        API_VERSION, "Version of the document.", targets=OF_THE_VERSION
    )
    kind: Literal["EnginePool"] = documented_field("EnginePool", "Kind of the document.", targets=OF_THE_KIND)
    metadata: Metadata = documented_field(
        ...,
        "Name and labels.",
        targets=exported_alike(Xds.EDS | Xds.RTDS | Xds.RDS | Xds.CDS | Xds.LDS, OF_THE_NAME),
    )
    spec: EnginePoolSpec = documented_field(..., "The engines and how they are judged.")
