"""CustomResourceDefinitions of the policy documents, made from the same models that judge files.

No field is defaulted by the cluster: the policies of a pool are laid over each other by what each one says, and a
default that was written into an object would be taken for its author's word.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from policies.crd.structural_schema import structural_schema
from policies.document import API_VERSION, API_VERSIONS
from policies.model import KINDS
from policies.quantity import NAME_PATTERN
from policies.schema import Schema

_GROUP: Final = API_VERSION.partition("/")[0]
CATEGORY: Final = "switchgear"

PLURALS: Final[Mapping[str, str]] = MappingProxyType(
    {"EnginePool": "enginepools", "ModelRoute": "modelroutes", "ResiliencePolicy": "resiliencepolicies"}
)
# `ep` is endpoints, and several kinds use `rp`; these are free.
_SHORT: Final = {"EnginePool": "epool", "ModelRoute": "mroute", "ResiliencePolicy": "rpol"}


def _column(name: str, path: str, kind: str = "string", *, wide: bool = False, about: str = "") -> Schema:
    return {
        "name": name,
        "type": kind,
        "jsonPath": path,
        **({"priority": 1} if wide else {}),
        **({"description": about} if about else {}),
    }


def _condition(name: str) -> str:
    return f'.status.conditions[?(@.type=="{name}")].status'


_CONDITIONS: Final = (
    _column("Accepted", _condition("Accepted"), about="Whether the newest spec is served."),
    _column("Programmed", _condition("Programmed"), about="Whether all proxies have confirmed it."),
    _column("Age", ".metadata.creationTimestamp", "date"),
)
_COLUMNS: Final[Mapping[str, tuple[Schema, ...]]] = {
    "EnginePool": (
        _column("Model", ".spec.model"),
        _column("Engines", ".status.engines.total", "integer"),
        _column("Healthy", ".status.engines.healthy", "integer"),
        _column("Unknown", ".status.engines.unknown", "integer", wide=True),
        _column("Draining", ".status.engines.draining", "integer", wide=True),
        _column("Unhealthy", ".status.engines.unhealthy", "integer", wide=True),
        *_CONDITIONS,
    ),
    "ModelRoute": (
        _column("Port", ".spec.listener.port", "integer"),
        _column("Model", ".spec.match.model"),
        _column("Pool", ".spec.pools[0].pool", about="The first of its pools."),
        _column("Fallback", ".spec.fallbacks[0]", about="The first of its fallbacks.", wide=True),
        *_CONDITIONS,
    ),
    "ResiliencePolicy": (_column("Mode", ".spec.mode"), *_CONDITIONS),
}


def crd(kind: str) -> Schema:
    """The CustomResourceDefinition of a kind of policy document."""
    plural = PLURALS[kind]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{_GROUP}", "labels": {"app.kubernetes.io/part-of": CATEGORY}},
        "spec": {
            "group": _GROUP,
            "scope": "Namespaced",
            "preserveUnknownFields": False,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [_SHORT[kind]],
                "categories": [CATEGORY],
            },
            # Correct because all versions have one schema: only apiVersion changes.
            "conversion": {"strategy": "None"},
            "versions": [
                {
                    "name": one.rpartition("/")[2],
                    "served": True,
                    # Control planes ask for this version; the one before knows no other.
                    "storage": one == API_VERSION,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [dict(column) for column in _COLUMNS[kind]],
                    "schema": {"openAPIV3Schema": _document(kind)},
                }
                for one in API_VERSIONS
            ],
        },
    }


def _document(kind: str) -> Schema:
    """The schema of the whole object."""
    said = structural_schema(KINDS[kind])
    of_the_api: Schema = {
        "apiVersion": {"type": "string", "description": f"{' or '.join(API_VERSIONS)}, which mean the same."},
        "kind": {"type": "string", "description": f"Always {kind}."},
        # Of metadata a definition may limit the name and nothing else.
        "metadata": {
            "type": "object",
            "properties": {"name": {"type": "string", "pattern": NAME_PATTERN, "maxLength": 63}},
        },
    }
    required = [name for name in said.get("required", ()) if name not in of_the_api]
    return {
        "type": "object",
        "description": said["description"],
        **({"required": required} if required else {}),
        "properties": {**of_the_api, "spec": said["properties"]["spec"], "status": _status(kind)},
        **{key: one for key, one in said.items() if key == "x-kubernetes-validations"},
    }


def _status(kind: str) -> Schema:
    """What Switchgear writes of an object."""
    properties: dict[str, Any] = {
        "observedGeneration": {
            "type": "integer",
            "format": "int64",
            "description": "Generation of the spec that this is about.",
        },
        "conditions": {
            "type": "array",
            "description": "Accepted: the newest spec is served; where not, reason and message name the field. "
            "Programmed: all proxies have confirmed it.",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": _metav1_condition(),
        },
        "digest": {"type": "string", "description": "Digest of the policies that are served."},
        "lastAccepted": {
            "type": "object",
            "description": "The spec that is served in place of one that was rejected.",
            "x-kubernetes-preserve-unknown-fields": True,
        },
    }
    if kind == "EnginePool":
        counts = {
            "total": "that the pool has",
            "healthy": "in rotation, with a report or a request so far",
            "unknown": "in rotation, without a report or a request so far",
            "draining": "that finish what they have",
            "unhealthy": "without traffic",
        }
        properties["engines"] = {
            "type": "object",
            "description": "How many engines there are.",
            "properties": {
                name: {"type": "integer", "description": f"Engines {what}."} for name, what in counts.items()
            },
        }
        properties["verdicts"] = {
            "type": "object",
            "description": "How many engines have which verdict.",
            "additionalProperties": {"type": "integer"},
        }
    return {"type": "object", "description": "What became of it; written by Switchgear.", "properties": properties}


def _metav1_condition() -> Schema:
    """``metav1.Condition``, with its own limits."""
    return {
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "type": {"type": "string", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "reason": {
                "type": "string",
                "minLength": 1,
                "maxLength": 1024,
                "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            },
            "message": {"type": "string", "maxLength": 32768},
        },
    }
