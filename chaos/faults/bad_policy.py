"""A bad policy push: the file that the control plane reads is suddenly wrong."""

from typing import ClassVar, Final, Literal

from chaos.faults.fault import Aim, Fault
from chaos.faults.pulls import Pull, PushPolicy
from policies.document import described

Mistake = Literal["syntax", "unknown-field", "half-written", "empty"]

_PUSHES: Final[dict[Mistake, PushPolicy]] = {
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


class BadPolicy(Fault):
    """The policy file gets the mistake; healing writes back what was there, in one step.

    Addresses in a ``text`` of yours are contacted as they stand.
    """

    aim: ClassVar[Aim] = Aim.CONTROL_PLANE
    incident: ClassVar[str] = "A policy was edited by hand at night and saved half-way."
    breaks: ClassVar[bool] = False

    kind: Literal["bad_policy"] = described("bad_policy", "Kind of the fault.")
    mistake: Mistake = described("syntax", "What is wrong with the file.")
    text: str = described("", "What the file says instead; the mistake is then not made.", max_length=100_000)

    def pulls(self, target: str) -> tuple[Pull, ...]:  # noqa: ARG002 -- there is one control plane
        return (PushPolicy(kept_share=0.0, text=self.text) if self.text else _PUSHES[self.mistake],)
