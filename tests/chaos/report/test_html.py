"""HTML report: order, figures, escaping, self-containment, size."""

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.experiment_verdict import ExperimentVerdict, verdict
from chaos.cli import verdict_outputs
from chaos.cli.check import command
from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.recorded_history import History
from chaos.measures.wasted_gpu_time import wasted_gpu_time
from chaos.report.html import html_report
from chaos.report.html.experiment_view import MOST_STEPS, ExperimentView, experiment_views
from chaos.report.html.fleet_figures import MOST_ENGINES, ejection_map, fleet_map
from chaos.report.html.outage_figure import outage_chain
from chaos.report.html.report_page import report_page
from chaos.report.html.request_figures import admission_figure, goodput_figure, latency_figure, retries_figure
from chaos.report.html.share_figure import traffic_shares
from chaos.report.html.svg_chart import ChartBox, ChartLabel, bars, line, linear_scale, log_scale, time_scale
from tests.chaos import history_builders
from tests.chaos.simulated_history import Play, played

GOOD = Play(
    seconds=16.0,
    start_s=5.0,
    end_s=10.0,
    hypothesis={"goodputPercent": 80, "leftAloneWithin": "1s"},
    bad=("e0", "e1"),
)
BAD = replace(GOOD, subject="naive", left_after_s=None, retries=5, try_timeout_s=0.4)
EVIL = "\"'><script>alert(1)</script><img src=https://evil.example/x onerror=alert(1)>"


class ElementParser(HTMLParser):
    """Collects every element with its attributes, and the text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}


@cache
def both() -> tuple[ExperimentVerdict, ExperimentVerdict]:
    return verdict(played(GOOD)), verdict(played(BAD))


@cache
def both_shown() -> str:
    return html_report(both())


def named(one: ExperimentVerdict, name: str) -> ExperimentVerdict:
    return replace(one, history=replace(one.history, began=replace(one.history.began, name=name)))


def one_view(history: History) -> ExperimentView:
    (found,) = experiment_views([verdict(history)])
    return found


def boxes(view: ExperimentView, css: str) -> list[ChartBox]:
    figure = fleet_map([view]) if css != "held" else ejection_map([view])
    return [one for one in figure.charts[0].shapes if isinstance(one, ChartBox) and one.css == css]


def assert_loads_nothing(document: str) -> None:
    seen = ElementParser(document)
    assert seen.tags().isdisjoint({"script", "iframe", "object", "embed", "img", "image", "use", "base", "form"})
    for tag, attributes in seen.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name != "style", tag
            assert (
                name not in {"src", "srcset", "href", "xlink:href", "action"}
                or value[0] == "#"
                or ((tag, value) == ("link", "data:,"))
            ), (tag, value)
    style = document[document.index("<style>") : document.index("</style>")]
    assert "@import" not in style
    assert set(re.findall(r"url\(([^)]*)\)", style)) <= {"#hatch", "#dots"}
    # Injected content could not load anything either.
    assert ("meta", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in [
        (tag, attributes.get("content", "")) for tag, attributes in seen.elements
    ]


def test_page_starts_with_verdict_then_failures() -> None:
    text = ElementParser(both_shown()).text
    expected = ["✖ FAILED", "2 experiments: 1 failed, 1 passed.", "naive: 1 failed"]
    expected += ["✖ BROKEN", "first at 5.0 s", "caller requests from 5.0 s", "All verdicts", "Promises"]
    places = [text.find(one) for one in expected]
    assert -1 not in places
    assert places == sorted(places)


def test_passed_run_lists_no_failures() -> None:
    text = ElementParser(html_report(both()[:1])).text
    assert "✔ PASSED" in text
    assert "Failures" not in text


def test_slow_bench_notes_that_broken_promises_do_not_count() -> None:
    findings = tuple(
        CheckFinding(check=check, answer=answer, why=f"{check} expected so")
        for check, answer in (("wastedPercent", CheckResult.NO), ("bench", CheckResult.UNKNOWN))
    )
    (found,) = report_page([replace(both()[1], findings=findings, answer=CheckResult.UNKNOWN)]).complaints
    assert found.chip.text == "UNKNOWN"
    assert "the test bench was too slow" in found.note
    assert not report_page(both()).complaints[0].note


def test_each_figure_has_a_chart_per_subject() -> None:
    (section,) = report_page(both()).sections
    assert {len(figure.charts) for figure in section.figures} == {2}
    assert all(figure.caption.endswith(".") and figure.keys for figure in section.figures)
    seen = ElementParser(both_shown())
    drawings = [attributes for tag, attributes in seen.elements if attributes.get("class") == "drawing"]
    # The simulated Envoys have no retry counters: that figure shows a note instead.
    assert len(drawings) == 2 * (len(section.figures) - 1)
    assert all(one["aria-label"] for one in drawings)
    assert "No samples of the Envoys' retry counters." in seen.text


def test_every_css_class_is_in_the_style_sheet() -> None:
    document = both_shown()
    style = document[document.index("<style>") : document.index("</style>")]
    looks = {
        look
        for tag, attributes in ElementParser(document).elements
        if tag in {"rect", "path", "text"}
        for look in attributes["class"].split()
    }
    # These two only name the element and have no style.
    assert {one for one in looks - {"empty", "unit"} if f".{one}" not in style} == set()


def test_subjects_share_their_scales() -> None:
    good, bad = experiment_views(both())
    figure = goodput_figure([good, bad])
    ticks = [[one.text for one in chart.shapes if isinstance(one, ChartLabel)] for chart in figure.charts]
    assert ticks[0] == ticks[1]


def test_page_loads_nothing_and_ids_are_unique() -> None:
    assert_loads_nothing(both_shown())
    some = [named(one, f"scenario {number}") for number in range(3) for one in both()]
    document = html_report(some)
    assert_loads_nothing(document)
    ids = [attributes["id"] for _, attributes in ElementParser(document).elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {attributes["href"] for tag, attributes in ElementParser(document).elements if tag == "a"}
    assert links == {f"#scenario-{number}" for number in (1, 2, 3)}
    assert links <= {f"#{one}" for one in ids}


def test_names_and_texts_are_escaped() -> None:
    history = played(GOOD)
    began = replace(
        history.began,
        name=EVIL,
        subject=EVIL,
        policies=EVIL,
        versions={EVIL: EVIL},
        scenario={"spec": {"title": EVIL, "incident": EVIL}},
        engines=tuple(replace(one, zone=EVIL if one.name == "e0" else "b") for one in history.began.engines),
    )
    history = replace(
        history,
        began=began,
        outages=(*history.outages, history_builders.outage(EVIL, fault={"kind": EVIL}, name=EVIL)),
        decided=[replace(one, evidence=EVIL, before=EVIL) for one in history.decided],
        answered=[*history.answered, history_builders.answered(6.0, proxy=EVIL, error=EVIL)],
        samples=[replace(one, proxy=EVIL, ejected=("e0",)) for one in history.samples],
    )
    document = html_report([verdict(history), both()[1]])
    assert_loads_nothing(document)
    assert EVIL not in document
    seen = ElementParser(document)
    assert seen.text.count(EVIL) > 10
    assert "script" not in seen.tags()


def test_suite_starts_with_the_matrix_and_folds_passed() -> None:
    good, bad = both()
    some = [good, *(named(bad, f"bad {number}") for number in range(5))]
    found = report_page(some)
    assert [section.open for section in found.sections] == [False, *[True] * 5]
    text = ElementParser(html_report(some)).text
    assert text.index("All verdicts") < text.index("Failures")
    ((_, _, cells), *_) = found.matrix[1:]
    assert [len(one) for one in cells] == [0, 1]
    assert "goodputPercent" in cells[1][0].about
    assert not report_page(both()).many


def test_empty_history_renders() -> None:
    empty = history_builders.history(began=history_builders.began(scenario={"spec": "not one"}))
    text = ElementParser(html_report([verdict(empty), verdict(replace(empty, ended_s=0.0))])).text
    assert "No request was seen." in text
    assert "No Envoy samples." in text
    assert "No call logs of the engines." in text
    assert "No engine was broken." in text
    calm = history_builders.history(
        began=history_builders.began(),
        requests=[history_builders.request(1, 1.0)],
        attempts=[history_builders.attempt(1, "e0", 1.0)],
        samples=[history_builders.sample(at_s, {}, retries=3) for at_s in (1.0, 2.0)],
    )
    text = ElementParser(html_report([verdict(calm)])).text
    assert "No GPU time wasted." in text
    assert "No retries, made or refused." in text
    assert "No experiments." in ElementParser(html_report([])).text


def test_page_size_is_bounded() -> None:
    assert len(both_shown().encode()) < 300_000
    long = history_builders.history(
        history_builders.outage("e0", start_s=100.0, end_s=200.0),
        began=history_builders.began(seconds=600.0),
        requests=[history_builders.request(number, number * 1.0) for number in range(600)],
        samples=[history_builders.sample(number * 1.0, {}, in_flight={"e0": number % 5}) for number in range(600)],
    )
    (view,) = experiment_views([verdict(long)])
    assert view.steps == len(view.bins) == MOST_STEPS
    assert len(html_report([view.verdict]).encode()) < 300_000


def test_fleet_map_shows_faults_and_ejections() -> None:
    history = played(GOOD)
    samples = [
        replace(one, ejected=("e2",) if 6.0 <= one.at_s < 8.0 or one.at_s > 15.0 else ())
        for one in history.samples
    ]
    view = one_view(replace(history, samples=samples))
    across = time_scale(16.0)
    assert [round(one.x, 3) for one in boxes(view, "faulty")] == [round(across.at(5.0), 3)] * 2
    assert [round(one.x, 3) for one in boxes(view, "out")] == [round(across.at(5.8), 3)] * 2
    assert [one.tip.partition(",")[0] for one in boxes(view, "held")] == ["e0", "e1"]
    own = boxes(view, "own")
    assert [one.tip for one in own] == [
        "e2, 6.0 s to 8.0 s: ejected by p0 itself",
        "e2, 15.1 s to 15.9 s: ejected by p0 itself",
    ]
    assert [round(one.x + one.width, 3) for one in own] == [round(across.at(at_s), 3) for at_s in (8.0, 15.9)]


def test_fleet_map_distinguishes_full_idle_and_unsampled() -> None:
    history = history_builders.history(
        began=history_builders.began(engines=history_builders.engines(1), seconds=3.0),
        samples=[
            history_builders.sample(at_s, {}, in_flight={"e0": number})
            for at_s, number in ((0.1, 9), (0.4, 0), (0.9, 0), (1.1, 4), (2.6, 7))
        ],
    )
    cells = [one for one in fleet_map([one_view(history)]).charts[0].shapes if isinstance(one, ChartBox)]
    assert [one.css for one in cells] == ["empty", "l4", "l6"]
    assert "0.0 s to 1.0 s: 0 in flight, 4 slots" in cells[0].tip
    # No sample from 1.5 s to 2.5 s.
    assert cells[2].x == time_scale(3.0).at(2.5)


def test_large_fleet_shows_affected_engines() -> None:
    engines = history_builders.engines(200)
    history = history_builders.history(
        history_builders.outage("e150"),
        began=history_builders.began(engines=engines),
        samples=[history_builders.sample(1.0, {}, in_flight={one.name: 1 for one in engines})],
        attempts=[history_builders.attempt(1, "e150", 1.0)],
    )
    view = one_view(history)
    for chart in (fleet_map([view]).charts[0], traffic_shares([view]).charts[0]):
        rows = [one.text for one in chart.shapes if isinstance(one, ChartLabel) and one.css.startswith("lane")]
        assert len(rows) == MOST_ENGINES
        assert "e150" in rows
        assert chart.note == f"{200 - MOST_ENGINES} more engines not shown."


def test_outages_of_other_targets_are_shown() -> None:
    history = history_builders.history(
        history_builders.outage("e1", fault={"kind": "agent_killed"}, name="agent"),
        history_builders.outage("control-plane", fault={"kind": "control_plane_killed"}, name="cp", end_s=None),
        began=history_builders.began(),
        pushed=[history_builders.pushed(3.0)],
        answered=[history_builders.answered(3.1, error="no such cluster")],
    )
    (chart,) = ejection_map([one_view(history)]).charts
    assert [one.text for one in chart.shapes if isinstance(one, ChartLabel) and one.css == "lane"] == [
        "e1",
        "control-plane",
        "pushes",
    ]
    tips = [one.tip for one in chart.shapes if not isinstance(one, ChartLabel)]
    assert [one for one in tips if "killed" in one and not one.startswith("fault: ")] == [
        "e1, 10.0 s to 20.0 s: agent_killed (agent)",
        "control-plane, 10.0 s to 30.0 s: control_plane_killed (cp)",
    ]
    assert "3.1 s: p0 refused eds: no such cluster" in tips


def test_outage_chain_has_fewer_steps_for_static_envoy() -> None:
    (good, bad) = (verdict(played(replace(one, bad=("e0",)))) for one in (GOOD, BAD))
    bad = replace(bad, history=replace(bad.history, began=replace(bad.history.began, policies="")))
    labels = [
        [one.text for one in chart.shapes if isinstance(one, ChartLabel)]
        for chart in outage_chain(experiment_views([good, bad])).charts
    ]
    assert labels[0][labels[0].index("detected") :][:6] == [
        "detected",
        "600 ms",
        "decided",
        "800 ms",
        "pushed",
        "805 ms",
    ]
    assert labels[0][labels[0].index("+ readmitted") + 1] == "500 ms"
    assert "detected" not in labels[1]
    assert labels[1][labels[1].index("last request") + 1] == "requests never stopped"


def test_retries_survive_a_counter_reset() -> None:
    counted = [(0.1, 0, 0), (0.7, 4, 1), (1.2, 10, 1), (1.7, 3, 0)]
    history = history_builders.history(
        began=history_builders.began(seconds=2.0),
        samples=[
            history_builders.sample(at_s, {}, retries=made, refused=refused) for at_s, made, refused in counted
        ],
    )
    view = one_view(history)
    assert view.retries_per_s == [0.0, 8.0, 12.0, 6.0]
    assert view.refused_per_s == [0.0, 2.0, 0.0, 0.0]
    (chart,) = retries_figure([view]).charts
    assert "0.5 s: 4 retried, 1 refused" in [one.tip for one in chart.shapes if isinstance(one, ChartBox)]


def test_wasted_time_adds_up() -> None:
    view = one_view(played(BAD))
    whole = wasted_gpu_time(view.history, view.case.impairments, 0.0, 1e9)
    wasted, destroyed = view.wasted
    # Calls that end after the last arrival are not drawn.
    assert 0.8 * whole.wasted_s < sum(wasted) * view.step_s <= whole.wasted_s
    assert sum(destroyed) == 0.0
    crashed = history_builders.history(
        history_builders.outage("e0", fault=history_builders.CRASH),
        began=history_builders.began(),
        attempts=[history_builders.attempt(1, "e0", 9.2, fate=Fate.FAILED, reason="crash", slot_s=0.8)],
    )
    wasted, destroyed = one_view(crashed).wasted
    assert sum(wasted) == 0.0
    assert list(destroyed[18:20]) == pytest.approx([0.6, 1.0])


def test_shares_are_multiples_of_the_fair_share() -> None:
    engines = history_builders.engines(2)
    engines = (replace(engines[0], slots=6), replace(engines[1], slots=2))
    history = history_builders.history(
        history_builders.outage("e1"),
        began=history_builders.began(engines=engines),
        attempts=[history_builders.attempt(number, "e0" if number % 2 else "e1", 1.0) for number in range(10)],
    )
    (chart,) = traffic_shares([one_view(history)]).charts
    tips = [one.tip for one in chart.shapes if not isinstance(one, ChartLabel)]
    assert "e0, before: 0.67 of its fair share" in tips
    assert "e1, before: 2.00 of its fair share" in tips


def test_distant_limit_does_not_flatten_the_chart() -> None:
    history = played(GOOD)
    high = replace(history, samples=[replace(one, ceiling=1e6) for one in history.samples])
    (chart,) = admission_figure([one_view(high)]).charts
    assert not [one for one in chart.shapes if one.shape == "path" and one.css == "ceiling"]
    assert max(float(one.text) for one in chart.shapes if isinstance(one, ChartLabel) and one.css == "end") < 100
    (chart,) = admission_figure([one_view(history)]).charts
    assert [one for one in chart.shapes if one.shape == "path" and one.css == "ceiling"]


def test_instant_requests_stay_on_the_scale() -> None:
    history = history_builders.history(
        began=history_builders.began(),
        requests=[history_builders.request(1, 1.0), history_builders.request(2, 2.0, latency_s=0.0)],
    )
    assert latency_figure([one_view(history)]).charts[0].shapes


def test_scales_map_values() -> None:
    up = linear_scale(84.0, 168.0)
    assert up.ticks == (0.0, 20.0, 40.0, 60.0, 80.0)
    assert up.at(0.0) > up.at(84.0) > 0.0
    assert linear_scale(0.0, 100.0).high == 1.0
    wide = log_scale(0.01, 12.0, 0.0, 100.0)
    assert wide.ticks == (0.01, 0.1, 1.0, 10.0)
    assert (wide.low, wide.high) == (0.01, 20.0)
    assert wide.at(0.001) == wide.at(0.01) == 0.0
    narrow = log_scale(0.4, 0.4, 0.0, 100.0)
    assert narrow.low < narrow.high
    assert (
        len(time_scale(38.0).ticks) == len(time_scale(3600.0).ticks) - 5 + 5 or time_scale(38.0).ticks[-1] == 35.0
    )


def test_lines_break_at_gaps_and_empty_bars_are_skipped() -> None:
    across, up = time_scale(10.0), linear_scale(1.0, 100.0)
    assert line(across, up, 1.0, [0.5, 0.5, None, 0.5]).count("M") == 2
    assert bars(across, up, 1.0, [0.0, 0.2, 0.5], [0.5, 0.2, 0.6]).count("z") == 2


def test_missing_jinja2_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_outputs, "find_spec", lambda _name: None)
    answer = CliRunner().invoke(command, ["nowhere", "--html", "x.html"])
    assert answer.exit_code == 2
    assert "pip install '.[report]'" in answer.output
