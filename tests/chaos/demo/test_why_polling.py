"""`why` is repeated while the state changes, up to a deadline."""

import io
import time

import pytest
from rich.console import Console

from chaos.demo import fault_schedule
from chaos.demo.demo_context import DemoContext
from chaos.demo.demo_plan import DemoPlan

NOT_YET = "pool tiny: degradation level 1"
THERE = "pool tiny: degradation level 2: 60 % of the requests go to\n  the fallback"


@pytest.fixture
def scene():
    return DemoContext(
        plan=DemoPlan(spans=(), rate_per_s=1.0, streaming_share=0.0, seed=1),
        stage=None,
        ours=None,
        theirs=None,
        session=None,
        console=Console(file=io.StringIO(), width=100),
        live=False,
        began_s=time.monotonic(),
    )


@pytest.fixture
def expected(monkeypatch):
    """Answers in order; the last one repeats."""
    answers = [NOT_YET, NOT_YET, THERE]

    async def why(_scene: DemoContext, _name: str) -> str:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(fault_schedule, "_why", why)
    monkeypatch.setattr(fault_schedule, "_AGAIN_S", 0.0)
    return answers


async def test_why_is_repeated_until_the_expected_words_appear(scene, expected):
    await fault_schedule.run_why(scene, "tiny", "go to the fallback", until_s=60.0)
    assert [answer.text for answer in scene.answers] == [THERE]
    assert expected == [THERE]


async def test_last_why_output_counts_after_the_deadline(scene, expected):
    await fault_schedule.run_why(scene, "tiny", "go to the fallback", until_s=0.0)
    assert [answer.text for answer in scene.answers] == [NOT_YET]
    assert len(expected) == 2
