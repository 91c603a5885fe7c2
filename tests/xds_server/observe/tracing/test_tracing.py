"""The waiting time of policies belongs to the round that adopts them."""

from types import SimpleNamespace
from typing import Any

from xds_server.observe.tracing.tracing import Tracing


class FakeTracer:
    """Replaces the change tracer."""

    def __init__(self) -> None:
        self.offered_s: list[float | None] = []

    def on_round(self, made: Any) -> None:
        self.offered_s.append(made.offered_s)


def test_policy_offer_belongs_to_the_next_round() -> None:
    now_s = [0.0]
    tracing, heard = Tracing("", lambda _pool, _engine: None, clock=lambda: now_s[0]), FakeTracer()
    tracing.change_tracer = heard  # type: ignore[assignment]  # all that is asked of it

    def round_at(moment_s: float) -> None:
        now_s[0] = moment_s
        inputs = SimpleNamespace(fleet=None, nodes={})
        built: Any = SimpleNamespace(decisions=None, inputs=inputs, stages_s={})
        tracing.round(built, {}, None)

    tracing.offered("a")
    tracing.adopted("a", None)
    round_at(1.0)
    round_at(3600.0)  # e.g. a canary starts, unknown to the files
    tracing.offered("b")
    round_at(3601.0)  # not adopted yet
    tracing.adopted("b", None)
    round_at(3602.0)
    tracing.offered("c")
    tracing.adopted("d", None)
    round_at(3603.0)
    assert heard.offered_s == [0.0, None, None, 3600.0, None]
