"""What becomes of the fields of an EnginePool in Istio."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from istio.export.destination_tls import shared_server_name
from istio.export.field_outcome import FieldContext, FieldOutcome, Judge, Table, approximated, kept, lost

_LONGEST_LABEL: Final = 63
_JUDGED: Final = "Istio judges engines by their answers alone; `switchgear istio run` brings live verdicts back"
_CARRIED: Final = "it describes the document and decides nothing; objects name the document in an annotation"
_TRUST: Final = (
    "credentialName, of a Secret beside the gateway's proxies; sidecars are told of a file that has to be "
    "mounted, /etc/switchgear/secrets/NAME/ca.crt; mode is SIMPLE, and has to be MUTUAL where engines ask for "
    "certificates"
)
_SUMS: Final = "it is in the ceiling as it was when exported; it no longer follows what is measured"

DOCUMENT: Final[Table] = MappingProxyType(
    {
        "apiVersion": kept("what is exported is of this version", ""),
        "kind": kept("each kind has its own objects", ""),
        "metadata.name": kept("objects are named after it, and say it in an annotation", ""),
        "metadata.namespace": kept("the namespace of the objects; --namespace where it is absent", ""),
        "metadata.labels": approximated(_CARRIED),
        "metadata.annotations": approximated(_CARRIED),
    }
)
"""Of what all documents have in common."""

TABLE: Final[Table] = MappingProxyType(
    {
        **DOCUMENT,
        "spec.model": approximated("requests keep the model name they have; nobody compares it with the pool's"),
        "spec.endpoints[].address": kept("address", "WorkloadEntry"),
        "spec.endpoints[].port": kept("ports.http", "WorkloadEntry"),
        "spec.endpoints[].agentPort": lost("Istio asks no agent; `switchgear istio run` does"),
        "spec.endpoints[].name": kept("name of the object; in full in an annotation", "WorkloadEntry"),
        "spec.endpoints[].zone": kept("locality, and a label to compare with the caller's", "WorkloadEntry"),
        "spec.endpoints[].region": kept("locality, and a label to compare with the caller's", "WorkloadEntry"),
        "spec.endpoints[].revision": lost("Istio fails over whatever model revision an engine serves"),
        "spec.endpoints[].slots": approximated(
            "weight within the zone, and part of the ceiling; Istio fills by weight, not by free slots",
            "WorkloadEntry",
        ),
        "spec.endpoints[].weight": kept("weight", "WorkloadEntry"),
        "spec.endpoints[].gpus": approximated("Switchgear does not interpret it either; objects do not carry it"),
        "spec.endpoints[].tensorParallelGroup": lost(
            "Istio ejects engines one by one; `switchgear istio run` takes out a group as one"
        ),
        "spec.endpoints[].labels": approximated("labels, those that Kubernetes takes", "WorkloadEntry"),
        "spec.kubernetes.service": kept("the Service's host stands for the pool", "DestinationRule"),
        "spec.kubernetes.selector": kept("workloadSelector", "ServiceEntry"),
        "spec.kubernetes.port": approximated(
            "the number is taken for the Service's port; where it is another one, say that of the Service",
            "VirtualService",
        ),
        "spec.kubernetes.agentPort": lost("Istio asks no agent; `switchgear istio run` does"),
        "spec.slotsPerEngine": approximated(_SUMS, "DestinationRule"),
        "spec.serviceTime": approximated(_SUMS, "DestinationRule"),
        "spec.longestServiceTime": approximated(
            "no limit is derived from it; limits are those that the policy gives"
        ),
        "spec.probe.interval": lost(_JUDGED),
        "spec.probe.timeout": lost(_JUDGED),
        "spec.probe.stallAfter": lost(_JUDGED),
        "spec.probe.unhealthyAfter": lost(_JUDGED),
        "spec.probe.healthyAfter": lost(_JUDGED),
        "spec.probe.path": lost(_JUDGED),
        "spec.probe.metricsPath": lost(_JUDGED),
        "spec.probe.loadPath": lost(_JUDGED),
        "spec.probe.enabled": lost(_JUDGED),
        "spec.firstTokenGate": kept("decides which limits and hedges streams get", "VirtualService"),
        "spec.tls.secret": approximated(_TRUST, "DestinationRule"),
        "spec.tls.serverName": kept(
            "tls.sni, and tls.subjectAltNames where the pool says none", "DestinationRule"
        ),
        "spec.tls.subjectAltNames": kept("tls.subjectAltNames", "DestinationRule"),
    }
)


def _zone(seen: FieldContext) -> FieldOutcome | None:
    if len(seen.value) > _LONGEST_LABEL:
        return lost("a label has at most 63 characters, and Istio compares places by labels")
    return None


def _port(seen: FieldContext) -> FieldOutcome | None:
    found = seen.policies.pools[seen.name].spec.kubernetes
    if found is None or isinstance(found.port, int):
        return None
    if found.service is not None:
        return approximated("Istio takes no name: the Service may have this one port only", "VirtualService")
    return lost("a ServiceEntry needs the number of the port; 8000 is written in its place")


def _weight(seen: FieldContext) -> FieldOutcome | None:
    """Beside engines that a Service selects, an entry would need the Service's own selector."""
    found = seen.policies.pools[seen.name].spec.kubernetes
    if found is not None and found.service is not None:
        return lost("engines given by hand cannot join a Service that others are selected by; use a selector")
    return None


def _sums(seen: FieldContext) -> FieldOutcome | None:
    pool = seen.policies.pools[seen.name]
    if pool.spec.kubernetes is not None and seen.policies.effective[seen.name].limits.max_concurrent is None:
        return lost("how many engines the cluster has is not known here; give limits.maxConcurrent for a ceiling")
    return None


def _probing(seen: FieldContext) -> FieldOutcome | None:
    if seen.policies.pools[seen.name].spec.probe.enabled:
        return None
    return kept("nobody asks the engines, here or there", "")


def _asked(seen: FieldContext) -> FieldOutcome | None:
    """Where each engine has a name of its own, Istio has no word for it."""
    if seen.value or shared_server_name(seen.policies.pools[seen.name]):
        return None
    return approximated(
        "Istio asks every engine for the host that callers ask for, and any of tls.subjectAltNames will do",
        "DestinationRule",
    )


def _patterns(seen: FieldContext) -> FieldOutcome | None:
    if not any("*" in name for name in seen.value):
        return None
    return lost("Istio compares whole names: one with * fits only a certificate that has it with the *")


def _both(first: Judge, second: Judge) -> Judge:
    return lambda seen: first(seen) or second(seen)


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        **{
            f"spec.endpoints[].{name}": _weight
            for name in ("address", "port", "name", "slots", "weight", "labels")
        },
        "spec.endpoints[].zone": _both(_weight, _zone),
        "spec.endpoints[].region": _both(_weight, _zone),
        "spec.kubernetes.port": _port,
        "spec.slotsPerEngine": _sums,
        "spec.serviceTime": _sums,
        "spec.tls.serverName": _asked,
        "spec.tls.subjectAltNames": _patterns,
        **{path: _probing for path in TABLE if path.startswith("spec.probe.")},
    }
)
