"""Frames and deltas of the dashboard."""

import json
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.xds_server.admin.dashboard.fake_server_backend import FakeServerBackend
from xds_server.admin.dashboard.frame import MOST_EVENTS, DashboardFrame, delta_message, frame, full_message
from xds_server.admin_api.status_types import FileDefect, FileProblem, RolledBackResource
from xds_server.admin_api.version_types import CanaryStatus


def laid_over(message: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """State of a page after a change, as in ``live.js``."""
    tables = {name: dict(table) for name, table in message["tables"].items()}
    for name, rows in change["tables"].items():
        table = tables.setdefault(name, {})
        for key, row in rows.items():
            if row is None:
                table.pop(key, None)
            else:
                table[key] = {**table.get(key, {}), **row}
    return {"at": change["at"], "tables": tables, "events": [*message["events"], *change["events"]]}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("load"), st.integers(0, 11), st.integers(0, 8)),
        st.tuples(st.just("health"), st.integers(0, 11), st.sampled_from(["HEALTHY", "UNHEALTHY", "DRAINING"])),
        st.tuples(st.just("gone"), st.integers(0, 11), st.none()),
        st.tuples(st.just("event"), st.integers(1, 3), st.none()),
        st.tuples(st.just("proxies"), st.integers(0, 5), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(STEPS)
def test_delta_messages_reproduce_the_next_frame(steps: list[tuple[str, int, Any]]) -> None:
    made = FakeServerBackend(12)
    before = frame(made, 1.0)
    message: dict[str, Any] = json.loads(json.dumps(full_message(before)))
    for at, (what, which, value) in enumerate(steps):
        name = f"vllm-{which}"
        if what == "load":
            made.change(name, in_flight=value)
        elif what == "health":
            made.change(name, health=value)
        elif what == "gone":
            made.rows = [row for row in made.rows if row.engine != name]
        elif what == "event":
            last = made.happened[-1]
            made.happened += [replace(last, number=last.number + 1 + more) for more in range(which)]
        else:
            made.count = which
        now = frame(made, 2.0 + at)
        message = laid_over(message, json.loads(json.dumps(delta_message(before, now))))
        assert message == json.loads(json.dumps(full_message(now)))
        before = now


def test_unchanged_frame_has_an_empty_delta() -> None:
    made = FakeServerBackend(200)
    one, other = frame(made, 1.0), frame(made, 2.0)
    assert delta_message(one, other) == {"at": 2.0, "tables": {}, "events": []}


def test_single_load_change_is_a_small_delta() -> None:
    made = FakeServerBackend(1000)
    before = frame(made, 1.0)
    made.change("vllm-7", in_flight=99)
    changed = delta_message(before, frame(made, 2.0))["tables"]
    assert changed["engines"] == {"chat/vllm-7": {"inFlight": 99}}


def test_frame_has_the_latest_events_of_a_long_ledger() -> None:
    made = FakeServerBackend(1)
    last = made.happened[-1]
    made.happened = [replace(last, number=number) for number in range(1, MOST_EVENTS + 50)]
    message = frame(made, 1.0)
    assert len(message.events) == MOST_EVENTS
    assert message.newest == MOST_EVENTS + 49


def test_frame_before_the_first_decision() -> None:
    made = FakeServerBackend(0)
    made.happened, made.ready = [], False
    message = frame(made, 1.0)
    assert message.newest == 0
    assert message.tables.engines == {}
    assert message.tables.server["server"].ready is False
    assert isinstance(message, DashboardFrame)


def test_frame_problems_have_no_age() -> None:
    made = FakeServerBackend(2)
    calm = frame(made, 1.0)
    made.wrong = [FileProblem(what="token", defect=FileDefect.OPEN, file="/t", sentence="chmod it", age_s=3.0)]
    made.refused = [
        RolledBackResource(
            type="CDS",
            name="chat",
            version="v",
            origins=("a.yaml:3",),
            refused_by=("n1",),
            refusals=1,
            age_s=9.0,
            reason="no",
            on_content_before=1,
            on_nothing=0,
            on_trial=0,
        )
    ]
    troubled = frame(made, 2.0)
    message = delta_message(calm, troubled)["tables"]["conditions"]
    assert [one["code"] for one in message.values()] == ["SG217", "SG215"]
    made.wrong = [replace(made.wrong[0], age_s=4.0)]
    assert "conditions" not in delta_message(troubled, frame(made, 3.0))["tables"]


def test_rolled_back_canary_is_shown_for_an_hour() -> None:
    made = FakeServerBackend(2)
    made.tried = CanaryStatus(state="running")
    calm = frame(made, 1.0)
    assert canary_codes(calm) == ["SG275"]
    made.tried = CanaryStatus(
        state="rolled-back",
        digest="5c1d0ffee5c1d0ffee",
        by="bob",
        reasons=("30 % of 100 requests fail",),
        ended_s=3.0,
    )
    message = frame(made, 2.0)
    found = message.tables.conditions["SG219 canary 0"]
    assert found.sentence == "5c1d0ffee5c1 by bob rolled back: 30 % of 100 requests fail"
    made.tried = replace(made.tried, ended_s=4.0)
    assert "conditions" not in delta_message(message, frame(made, 3.0))["tables"]
    made.tried = replace(made.tried, ended_s=3601.0)
    assert canary_codes(frame(made, 4.0)) == []


def canary_codes(found: DashboardFrame) -> list[str]:
    return [one.code for one in found.tables.conditions.values() if one.subject == "canary"]


def test_frame_serves_top_of_earlier_versions() -> None:
    made = FakeServerBackend(2)
    made.tried = CanaryStatus(state="rolled-back", digest="5c1d", by="bob", reasons=("failed",), ended_s=3.0)
    made.policy_state = "refused"
    row = frame(made, 1.0).tables.server["server"]
    assert "SG219 canary: 5c1d by bob rolled back: failed" in row.troubles
    assert not [one for one in row.troubles if one.startswith("SG20")], "it finds these by itself"
    assert (row.held, row.lost) == ("", ())


def test_figures_of_an_old_report_give_way_to_its_age() -> None:
    made = FakeServerBackend(2)
    row = replace(made.rows[0], in_flight=None, requests_in_flight=5, report_age_s=2.0, tokens_per_s=9.0)
    made.rows[0] = row
    name = f"{row.pool}/{row.engine}"
    fresh = frame(made, 1_000.0).tables.engines[name]
    assert (fresh.heard_at, fresh.in_flight, fresh.tokens_per_s) == (None, 5, 9.0)
    made.rows[0] = replace(row, report_age_s=42.0)
    stale = frame(made, 1_000.0).tables.engines[name]
    assert (stale.heard_at, stale.in_flight, stale.tokens_per_s) == (960.0, None, None)
    assert (stale.kv_percent, stale.gpu_percent, stale.waiting) == (None, None, None)
    assert stale.verdict == fresh.verdict
