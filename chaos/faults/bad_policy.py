"""A bad policy push: the control plane's policy file becomes invalid."""

from typing import ClassVar, Final, Literal

from chaos.faults.actions import FaultAction, PushPolicy
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from policies.document import documented_field

PolicyMistake = Literal["syntax", "unknown-field", "half-written", "empty"]

_PUSHES: Final[dict[PolicyMistake, PushPolicy]] = {
    "syntax": PushPolicy(kept_share=1.0, text="\n---\nkind: [ResiliencePolicy\n"),
    "unknown-field": PushPolicy(
        kept_share=1.0,
        text=(
            "\n---\napiVersion: switchgear.dev/v1alpha1\nkind: ResiliencePolicy\n"
            "metadata: {name: pushed-in-a-hurry}\nspec: {retriess: {attempts: 50}}\n"
        ),
    ),
    "half-written": PushPolicy(kept_share=0.5, text=""),
    "empty": PushPolicy(kept_share=0.0, text=""),
}


class BadPolicyFault(Fault):
    """Write the mistake into the policy file; healing restores the file atomically. Addresses in your own ``text``
    are contacted as written.
    """

    aim: ClassVar[TargetKind] = TargetKind.CONTROL_PLANE
    incident: ClassVar[str] = "A policy file was edited by hand and saved half-written."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = "it is a change of a file: apply a broken ConfigMap"

    kind: Literal["bad_policy"] = documented_field("bad_policy", "Kind of the fault.")
    mistake: PolicyMistake = documented_field("syntax", "Mistake to write into the file.")
    text: str = documented_field("", "Replacement for the whole file; overrides mistake.", max_length=100_000)

    def actions(self, target: str) -> tuple[FaultAction, ...]:  # noqa: ARG002 -- there is one control plane
        return (PushPolicy(kept_share=0.0, text=self.text) if self.text else _PUSHES[self.mistake],)
