"""The verdict blames Switchgear's side for what it could have helped, and for nothing else."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from chaos.demo import terminal_view
from chaos.demo.demo_plan import ENGINES, SLOTS, ZONES, Chapter, demo_plan
from chaos.demo.demo_verdict import DegradationStep, WhyOutput, demo_verdict
from chaos.demo.scoring import Score

PLAN = demo_plan()
GOOD = Score(
    requests=9,
    good=9,
    lost=0,
    cut=0,
    shed=0,
    fallback=0,
    undisclosed=0,
    misnamed=0,
    good_p50_s=0.5,
    good_p99_s=0.9,
    wasted_slot_s=0.0,
    attempts=1.0,
)
ANSWER = WhyOutput(
    time_s=6.0,
    name="b1",
    text="tiny/b1 is out.\n  hung: no token\n    for 1.2 s.\n\nRuled by:\n  probe (/tmp/x/demo.yaml:12)\n\n"
    "Before:\n" + "\n".join(f"  {number}s ago" for number in range(20)),
    expected=("tiny/b1", "hung", "no token for"),
)


def steps(*levels: int) -> list[DegradationStep]:
    return [
        DegradationStep(time_s=60.0 + after, before=before, after=after, reason=f"level {after}: 150 % is asked")
        for before, after in zip((0, *levels), levels, strict=False)
    ]


def scores(**changed: Score) -> dict[Chapter, Score]:
    good = {chapter.name: GOOD for chapter in Chapter} | {"OVERLOAD": replace(GOOD, fallback=3)}
    return {Chapter[name]: found for name, found in (good | changed).items()}


def judged(found=None, *, levels=(1, 2, 1, 0), answers=(ANSWER,)):
    return demo_verdict(found or scores(), steps(*levels), answers, PLAN)


def test_good_demo_passes():
    assert judged().objections == ()
    assert judged(levels=(1, 2, 3, 2, 3, 2, 1, 2, 1, 0)).passed


@pytest.mark.parametrize("chapter", [chapter.name for chapter in Chapter])
@pytest.mark.parametrize("change", ["lost", "undisclosed", "misnamed"])
def test_one_lost_request_fails_any_chapter(chapter, change):
    found = scores(**{chapter: replace(GOOD, fallback=3, **{change: 1})})
    (objection,) = judged(found).objections
    assert Chapter[chapter] in objection
    assert " 1 " in objection


@pytest.mark.parametrize("chapter", list(Chapter))
def test_requests_may_be_shed_only_under_overload(chapter):
    found = scores(**{chapter.name: replace(GOOD, fallback=3, shed=1)})
    assert judged(found).passed == (chapter is Chapter.OVERLOAD)


@pytest.mark.parametrize(
    ("chapter", "allowed"),
    [("CALM", 0), ("HANG", SLOTS), ("CRASH", 3 * SLOTS), ("DRAIN", 0), ("OVERLOAD", 6 * SLOTS)],
)
def test_only_streams_on_dying_engines_may_be_cut(chapter, allowed):
    assert judged(scores(**{chapter: replace(GOOD, fallback=3, cut=allowed)})).passed
    assert not judged(scores(**{chapter: replace(GOOD, fallback=3, cut=allowed + 1)})).passed


def test_chapter_without_requests_fails():
    assert not judged(scores(HANG=replace(GOOD, requests=0))).passed


@pytest.mark.parametrize(
    ("levels", "complaint"),
    [
        ((), "reached level 0"),
        ((1, 0), "reached level 1"),
        ((1, 2), "stayed at level 2"),
        ((1, 2, 1), "stayed at level 1"),
        ((2, 1, 0), "degradation skipped a level"),
        ((1, 2, 0), "degradation skipped a level"),
    ],
)
def test_degradation_levels_must_rise_and_fall_one_at_a_time(levels, complaint):
    (objection,) = judged(levels=levels).objections
    assert complaint in objection


def test_unobserved_degradation_level_is_not_assumed():
    found = demo_verdict(scores(), steps(1, 2, 1, 0)[1:], [ANSWER], PLAN)
    assert "degradation skipped a level" in found.objections[0]


def test_degradation_level_counted_by_the_ledger_is_accepted():
    # 0 -> 1 -> 0 -> 1 between two reads: the ledger keeps the second 0 -> 1 and counts the unseen one.
    first, back, again, *rest = steps(1, 0, 1, 2, 1, 0)
    shown = [back, replace(again, unseen=1), *rest]
    assert demo_verdict(scores(), [first, back, again, *rest], [ANSWER], PLAN).passed
    assert demo_verdict(scores(), shown, [ANSWER], PLAN).passed
    assert not demo_verdict(scores(), [back, again, *rest], [ANSWER], PLAN).passed
    assert not demo_verdict(scores(), [back, replace(again, unseen=1), *rest[1:]], [ANSWER], PLAN).passed


def test_missing_fallback_answer_fails():
    (objection,) = judged(scores(OVERLOAD=GOOD)).objections
    assert "no answer came from the fallback" in objection


def test_missing_why_output_fails():
    assert "no `switchgear why` was run" in judged(answers=()).objections
    unnamed = replace(ANSWER, text="nothing is known of it (/x/demo.yaml:12)")
    assert len(judged(answers=[ANSWER, unnamed]).objections) == len(ANSWER.expected)


def test_why_without_policy_line_fails():
    vague = replace(ANSWER, text=ANSWER.text.replace("/tmp/x/demo.yaml:12", "built-in default"))
    (objection,) = judged(answers=[vague]).objections
    assert "names no policy line" in objection


def printed(renderable, width):
    out = io.StringIO()
    Console(width=width, file=out).print(renderable)
    return out.getvalue()


def test_why_output_is_quoted_and_shortened():
    text = printed(terminal_view.why_text(ANSWER), 80)
    assert "$ switchgear why b1" in text
    assert "| tiny/b1 is out." in text
    assert "5s ago" in text
    assert "6s ago" not in text
    assert "... 14 more lines" in text


def test_table_fits_80_columns():
    both = {"switchgear": scores(), "plain envoy": scores(DRAIN=replace(GOOD, lost=12345))}
    text = printed(terminal_view.result_table(both), 80)
    assert "12345" in text
    assert "tries" in text
    assert "…" not in text


def frame(level):
    engines = [
        terminal_view.EngineLine(
            name=name,
            zone=name[0],
            verdict="starting",
            health="UNHEALTHY",
            share_percent=100.0,
            plain_share_percent=100.0,
        )
        for name in ENGINES
    ]
    reason = "pressure 176 %, entered at 100 %; no hedging, minimal retries, 45 % of requests go to the fallback"
    reason += "; level 3 at 130 %"
    side = terminal_view.SideLine(goodput_percent=50.0, p50_s=1.0, p99_s=None, lost=7)
    return terminal_view.ScreenFrame(
        time_s=61.0,
        length_s=72.0,
        chapter=Chapter.OVERLOAD,
        doing=", ".join(ENGINES),
        engines=engines,
        proxies={f"gateway-{zone}": "SYNCED" for zone in ZONES},
        reasons=[f"{name}: dead: connection refused at 127.0.0.1:43723" for name in ENGINES],
        ladder=terminal_view.DegradationLine(
            level=level, reason=reason, asked_percent=97.4, fallback_percent=44.0, shed_per_s=3.26
        ),
        sides={"switchgear": side, "plain envoy": side},
    )


def test_full_live_view_fits_a_terminal():
    lines = printed(terminal_view.live_view(frame(2)), 80).splitlines()
    assert len(lines) <= 24
    assert not any("…" in line for line in lines)


def test_live_view_shows_the_degradation_level():
    text = " ".join(printed(terminal_view.live_view(frame(2)), 120).replace("│", "").split())
    assert "level 2 load 97 % of capacity smaller model 44 % shed 3.3/s" in text
    assert "45 % of requests go to the fallback" in text
    assert "level 2: " not in text
    assert "fallback" not in printed(terminal_view.live_view(frame(0)), 120)


@pytest.mark.parametrize("passed", [True, False])
def test_svg_is_self_contained_and_shows_the_verdict(passed):
    found = judged() if passed else judged(levels=())
    both = {"switchgear": scores(), "plain envoy": scores()}
    picture = terminal_view.svg(both, steps(1, 2, 1, 0), [ANSWER], found)
    assert "url(http" not in picture
    assert "@font-face" not in picture
    assert ("passed" in picture) == passed
    assert ("failed" in picture) == (not passed)
    assert "switchgear&#160;why&#160;b1" in picture
