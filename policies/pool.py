"""EnginePool: the engines of a model, and their probes."""

from typing import Final, Literal

from pydantic import model_validator

from policies.discovery import Discovery
from policies.document import (
    API_VERSION,
    OF_THE_KIND,
    OF_THE_NAME,
    OF_THE_VERSION,
    ApiVersion,
    Labels,
    Metadata,
    Spec,
    documented_field,
)
from policies.engine_tls import EngineTls
from policies.fidelity import approximated, kept, lost
from policies.field_checks import CelRule, ListKeys, NullAllowed, ValueLint
from policies.field_targets import FieldTargets, Xds, exported_alike
from policies.objectives import PoolObjectives
from policies.quantity import Duration, EngineName, HostAddress, Name, Port, Revision, Zone
from policies.remote_prefill import Stage

_SUMS: Final = "part of the admission limit as exported; it does not follow measurements"
_ISTIO_SUMS: Final = approximated(_SUMS, "DestinationRule")
_GATEWAY_SUMS: Final = approximated(_SUMS, "BackendTrafficPolicy")

_LONGEST_PER_MEAN: Final = 4.0
_STEP_S: Final = 1.0
_SHORT_TIMEOUT_S: Final = 0.25


class Endpoint(Spec):
    """One engine: its address, location and capacity."""

    address: HostAddress = documented_field(
        ...,
        "IP address or host name of the engine, without scheme and port.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RDS | Xds.LDS,
            istio=kept("address", "WorkloadEntry"),
            gateway_api=kept("addresses of the endpoint", "EndpointSlice"),
        ),
    )
    port: Port = documented_field(
        ...,
        "Port of the engine's OpenAI API.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RDS | Xds.LDS,
            istio=kept("ports.http", "WorkloadEntry"),
            gateway_api=kept("port of the endpoint", "EndpointSlice"),
        ),
    )
    agent_port: Port | None = documented_field(
        None,
        "Port of the engine's agent (switchgear-agent), at the same address.",
        why="the engine is probed over the network only while its agent is silent",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=lost("Istio uses no agent; `switchgear istio run` does"),
            gateway_api=lost("a gateway uses no agent"),
        ),
    )
    name: EngineName = documented_field(
        "",
        "Name in status, logs and decisions.",
        why="address:port is unique and locates the engine",
        checks=(NullAllowed(),),
        targets=FieldTargets(
            live=Xds.EDS | Xds.RDS | Xds.LDS,
            istio=kept("name of the object; in full in an annotation", "WorkloadEntry"),
            gateway_api=lost("endpoints have no name"),
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
        "Revision of the model that this engine serves, major number first, e.g. 2.1.0.",
        why="regions replace each other only within a major revision, unless regions.acrossRevisions allows more",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS,
            istio=lost("Istio fails over whatever model revision an engine serves"),
            gateway_api=lost("endpoints have no revision"),
        ),
    )
    slots: int | None = documented_field(
        None,
        "Requests this engine runs in parallel; default: the pool's slotsPerEngine.",
        why="engines of a zone are filled in proportion to their slots",
        unit="requests",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS,
            istio=approximated(
                "weight within the zone, and part of the admission limit; Istio fills by weight, not by free "
                "slots",
                "WorkloadEntry",
            ),
            gateway_api=approximated(
                "part of the admission limit, and of the weights if a pool has several backends; engines are "
                "filled by fewest requests, whatever their slots"
            ),
        ),
        ge=1,
        le=65536,
    )
    weight: int = documented_field(
        1,
        "Share of traffic relative to its peers in the zone.",
        why="equal weights keep Envoy's least-request selection accurate; set slots for unequal engines",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=kept("weight", "WorkloadEntry"),
            gateway_api=lost("endpoints of a backend have equal weight"),
        ),
        ge=1,
        le=128,
    )
    gpus: int = documented_field(
        1,
        "GPUs of the engine; stored, not interpreted.",
        unit="GPUs",
        targets=exported_alike(
            Xds.NONE, approximated("not interpreted by Switchgear either; objects do not carry it")
        ),
        ge=0,
        le=1024,
    )
    tensor_parallel_group: str = documented_field(
        "",
        "Engines with the same group name share GPUs and fail as one unit.",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=lost("Istio ejects engines one by one; `switchgear istio run` ejects a group as one"),
            gateway_api=lost("engines are ejected one by one"),
        ),
        max_length=253,
    )
    labels: Labels = documented_field(
        {},
        "Labels, shown in status and passed to Envoy as endpoint metadata.",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=approximated("labels that Kubernetes accepts", "WorkloadEntry"),
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
    istio=lost("Istio ejects by answers alone; `switchgear istio run` adds live verdicts"),
    gateway_api=lost("a gateway ejects by answers alone"),
)


class Probe(Spec):
    """How the control plane probes an engine: with a request for one token."""

    interval: Duration = documented_field(
        0.5,
        "Interval between two probes of an engine.",
        why="a hung engine is ejected within about two intervals; a probe costs one token",
        unit="duration",
        targets=_PROBED,
        ge=0.05,
        le=60,
    )
    timeout: Duration = documented_field(
        1.0,
        "Longest time an idle engine may take for one token.",
        why="an idle engine needs 10 ms; one second leaves room for a long prefill of another request",
        unit="duration",
        checks=(
            ValueLint(
                code="SG175",
                applies=lambda timeout: timeout < _SHORT_TIMEOUT_S,
                message="an engine ten times slower than usual needs longer for a token: it counts as hung, and "
                "its requests are cut",
                fix="write 1s; a hung engine with requests is found by stallAfter in any case",
            ),
        ),
        targets=_PROBED,
        ge=0.01,
        le=60,
    )
    stall_after: Duration | None = documented_field(
        None,
        "Longest time without progress, with requests in flight, before the engine counts as hung; default: 1s "
        "for decodes, and 3s plus the longest recent step for a prefill.",
        why="nothing moves within an engine step; set it above the longest step if a first chunk takes over 3s",
        unit="duration",
        targets=_PROBED,
        ge=0.1,
        le=600,
    )
    hung_rank: Literal["eject", "reduceShare"] = documented_field(
        "eject",
        "Effect of a hung data-parallel rank on its engine while others work: eject it, or reduce its share of "
        "requests by the share of hung ranks.",
        why="vLLM keeps giving requests to a hung rank; a smaller share loses fewer, ejection none",
        targets=_PROBED,
    )
    unhealthy_after: int = documented_field(
        2,
        "Consecutive failed probes before an engine is ejected.",
        why="one lost packet is not a hang",
        targets=_PROBED,
        ge=1,
        le=100,
    )
    healthy_after: int = documented_field(
        1,
        "Consecutive successful probes before an engine returns to rotation.",
        why="late recovery costs most when capacity is short",
        targets=_PROBED,
        ge=1,
        le=100,
    )
    path: Literal[
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/embeddings",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
    ] = documented_field(
        "/v1/completions",
        "API path of the probe: a completion of one token, or one short text or sound for embedding, pooling, "
        "reranking and speech engines.",
        targets=_PROBED,
    )
    metrics_path: str = documented_field(
        "/metrics", "Path of the engine's Prometheus metrics.", targets=_PROBED, pattern=r"^/[^\s]*$"
    )
    load_path: str = documented_field(
        "/load",
        "Path of the engine's count of requests in flight (vLLM: --enable-server-load-tracking).",
        why="the only count that still rises when the engine core is stuck",
        targets=_PROBED,
        pattern=r"^/[^\s]*$",
    )
    api_key_secret: Name | None = documented_field(
        None,
        "Secret with the engines' API key (vLLM --api-key), for probes: the file api-key in a folder below `serve "
        "--secrets DIR`.",
        targets=_PROBED,
    )
    enabled: bool = documented_field(
        True,
        "Probe engines; without probes every engine counts as ready.",
        targets=_PROBED,
        checks=(
            ValueLint(
                code="SG129",
                applies=lambda enabled: not enabled,
                message="engines are not probed: one that hangs while its /health answers 200 stays in rotation "
                "until "
                "requests time out",
                fix="enable the probe, unless agents report on these engines",
            ),
        ),
    )

    @property
    def step_s(self) -> float:
        """Longest usual engine step, in seconds, for limits that must exceed it."""
        return _STEP_S if self.stall_after is None else self.stall_after


_LOADED: Final = FieldTargets(
    live=Xds.NONE,
    istio=lost("Istio loads no adapters; `switchgear istio run` does"),
    gateway_api=lost("a gateway loads no adapters"),
)


class LoadedAdapter(Spec):
    """A LoRA adapter that Switchgear has engines load."""

    name: str = documented_field(
        ...,
        "Name of the adapter: `match.model` of its route.",
        targets=_LOADED,
        min_length=1,
        max_length=253,
    )
    path: str = documented_field(
        ...,
        "Folder on the machines of the engines, or what else they accept as `lora_path`.",
        targets=_LOADED,
        min_length=1,
        max_length=1024,
    )
    engines: int | None = documented_field(
        None,
        "How many engines shall have it; default: all.",
        why="an adapter in every engine needs no zone, retry or drain to be thought of; each takes GPU memory",
        unit="engines",
        targets=_LOADED,
        ge=1,
        le=20_000,
    )


class EnginePoolSpec(Spec):
    """Interchangeable engines with the same model."""

    model: str = documented_field(
        ...,
        "Model name that the engines serve.",
        targets=exported_alike(
            Xds.EDS | Xds.RTDS | Xds.RDS,
            approximated("requests keep their model name; it is not compared with the pool's"),
        ),
        min_length=1,
        max_length=253,
    )
    stage: Stage | None = documented_field(
        None,
        "Stage of the engines. prefill: no route leads to them, the `prefill` of a route names the pool. decode: "
        "a routing side-car in front of each reads the header `x-prefiller-host-port`. Default: both stages.",
        targets=FieldTargets(
            live=Xds.CDS,
            istio=lost("Istio does not know stages: engines of a decode pool prefill themselves"),
            gateway_api=lost("gateways do not know stages: engines of a decode pool prefill themselves"),
        ),
    )
    endpoints: tuple[Endpoint, ...] = documented_field(
        (),
        "The engines.",
        # Unique addresses. Names are not keys: a cluster requires keys, and names are optional.
        checks=(ListKeys(("address", "port")),),
        max_length=20_000,
    )
    kubernetes: Discovery | None = documented_field(
        None,
        "Engines discovered in the cluster, besides the listed ones; for policies from a cluster.",
    )
    slots_per_engine: int = documented_field(
        8,
        "Requests one engine runs in parallel (vLLM: --max-num-seqs).",
        why="deliberately small: overestimating slots by factor k extends the promised wait by factor k",
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
        why="with the allowed wait it sets the admission limit: slots x (1 + maxWait / serviceTime)",
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
        "Longest time a healthy request holds a slot; default: four times serviceTime.",
        why="timeouts below allowed wait plus this abort healthy work",
        unit="duration",
        checks=(
            CelRule(
                rule="!has(self.longestServiceTime) || duration(self.longestServiceTime) >= "
                "duration(has(self.serviceTime) ? self.serviceTime : '2s')",
                message="longestServiceTime is at least serviceTime",
                code="SG040",
                field=".longestServiceTime",
            ),
        ),
        targets=exported_alike(
            Xds.EDS | Xds.RDS, approximated("no limit is derived from it; only written limits are exported")
        ),
        ge=0.001,
        le=86400,
    )
    probe: Probe = documented_field(Probe, "Probes of the engines.")
    first_token_gate: bool = documented_field(
        False,
        "Engines hold response headers until the first token exists.",
        why="stock vLLM sends headers at once; set true only with the gate installed",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("decides which limits and hedges streams get", "VirtualService"),
            gateway_api=lost("no limit on the first token is exported, with or without the gate"),
        ),
    )
    tls: EngineTls | None = documented_field(
        None,
        "TLS to the engines; default: plain HTTP.",
    )
    adapters: tuple[LoadedAdapter, ...] = documented_field(
        (),
        "LoRA adapters that engines without them are asked to load (`/v1/load_lora_adapter`), after a restart "
        "again. None is unloaded. vLLM must allow it (VLLM_ALLOW_RUNTIME_LORA_UPDATING).",
        why="the path is a file that engines read, so only policies name it, and by default none is loaded",
        checks=(ListKeys(("name",)),),
        max_length=256,
    )
    objectives: PoolObjectives = documented_field(
        PoolObjectives,
        "What callers of this pool are promised, over all routes; measured from access logs, and the time between "
        "tokens by agents. Alerts watch how "
        "fast the error budget is spent.",
    )

    @property
    def longest_s(self) -> float:
        """Longest time a healthy request holds a slot, in seconds."""
        return self.longest_service_time or _LONGEST_PER_MEAN * self.service_time


class EnginePool(Spec):
    """A named pool of engines."""

    api_version: ApiVersion = documented_field(API_VERSION, "Version of the document.", targets=OF_THE_VERSION)
    kind: Literal["EnginePool"] = documented_field("EnginePool", "Kind of the document.", targets=OF_THE_KIND)
    metadata: Metadata = documented_field(
        ...,
        "Name and labels.",
        targets=exported_alike(Xds.EDS | Xds.RTDS | Xds.RDS | Xds.CDS | Xds.LDS, OF_THE_NAME),
    )
    spec: EnginePoolSpec = documented_field(..., "The engines and their probes.")
