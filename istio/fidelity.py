"""What becomes of each field of a policy in another configuration language: kept, approximated or lost.

Exporters report it with their output, so that no loss is first noticed in an outage. Each field declares its own
outcome (``policies.fidelity``); what an export reports here also depends on the value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policies.fidelity import Fidelity


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldFidelity:
    """What became of one field of one document.

    ``document`` is ``Kind/name`` and ``path`` as in YAML (``spec.breaker.cooldown``); ``value`` is the effective
    value as an operator would write it, ``set_by`` where it was set (``file:line``), or ``default``. ``how`` is
    one sentence: its counterpart, or why there is none. ``target`` names the object with the counterpart
    (``Kind/name``), empty if there is none.
    """

    document: str
    path: str
    value: str
    fate: Fidelity
    how: str
    set_by: str = "default"
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Objects in the order in which they should be applied, the fate of every field, and omitted documents.

    ``left_out`` has the reason for each ``Kind/name`` without any object.
    """

    objects: tuple[dict[str, object], ...]
    fields: tuple[FieldFidelity, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)


def worst_fidelity(fates: Sequence[FieldFidelity]) -> Fidelity:
    """Worst fate of all set fields; exact if none is set."""
    order = list(Fidelity)
    return max((one.fate for one in fates if one.set_by != "default"), key=order.index, default=Fidelity.EXACT)
