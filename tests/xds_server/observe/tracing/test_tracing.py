"""How long policies waited is told of the round that took them up, and of no other."""

from types import SimpleNamespace
from typing import Any

from xds_server.observe.tracing.tracing import Tracing


class FakeTracer:
    """Takes the place of what follows changes."""

    def __init__(self) -> None:
        self.offered_s: list[float | None] = []

    def on_round(self, made: Any) -> None:
        self.offered_s.append(made.offered_s)


def test_an_offer_belongs_to_the_first_round_after_it_and_to_its_own_policies() -> None:
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
    round_at(3600.0)  # a canary begins, say, of which the files knew nothing
    tracing.offered("b")
    round_at(3601.0)  # not taken up yet
    tracing.adopted("b", None)
    round_at(3602.0)
    tracing.offered("c")
    tracing.adopted("d", None)
    round_at(3603.0)
    assert heard.offered_s == [0.0, None, None, 3600.0, None]
