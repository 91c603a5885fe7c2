"""All policies, validated and merged: the value that the rest of Switchgear reads.

``policies.load`` returns a ``PolicySet``. Each pool has one effective ``ResilienceSpec``: built-in defaults, then
the policy named ``default``, then the policy that lists the pool, merged field by field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias

from policies.findings import Finding
from policies.origin import Origin
from policies.pool import EnginePool
from policies.resilience import ResiliencePolicy, ResilienceSpec
from policies.route import ModelRoute

_NONE: Mapping[str, "Origin"] = MappingProxyType({})


Document: TypeAlias = EnginePool | ModelRoute | ResiliencePolicy

KINDS: Final[Mapping[str, type[Document]]] = MappingProxyType(
    {"EnginePool": EnginePool, "ModelRoute": ModelRoute, "ResiliencePolicy": ResiliencePolicy}
)
"""Every kind of document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """A complete, consistent set of policies: every reference in it resolves.

    ``effective`` has one entry per pool. ``origins`` maps ``Kind/name`` and ``Kind/name.spec.field.path``
    (camelCase, list items as ``[0]``) to the place in a file. ``digest`` is a hash of the values in the documents.
    ``layers`` lists, for each pool, the policies merged over the built-in defaults; the last one wins.
    ``remarks`` are warnings about the files themselves, ``notes`` need no action yet.
    """

    pools: Mapping[str, EnginePool]
    routes: Mapping[str, ModelRoute]
    policies: Mapping[str, ResiliencePolicy]
    effective: Mapping[str, ResilienceSpec]
    origins: Mapping[str, Origin] = field(default_factory=lambda: _NONE)
    digest: str = ""
    layers: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    remarks: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()

    def origin(self, kind: str, name: str, path: str = "") -> Origin | None:
        """The place of ``path`` in a document, or the nearest enclosing place; None for built-in defaults."""
        key = f"{kind}/{name}"
        if path:
            parts = path.replace("[", ".[").split(".")
            for end in range(len(parts), 0, -1):
                found = self.origins.get(f"{key}." + ".".join(parts[:end]).replace(".[", "["))
                if found is not None:
                    return found
        return self.origins.get(key)
