"""Files, tables, the page and the command: what is made, kept, made again, and shown."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.failover import cli, main
from benchmarks.failover.contestants import CONTESTANTS
from benchmarks.failover.experiment_history import CpuUse
from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.failover_experiment import ExperimentCell
from benchmarks.failover.failover_page import page
from benchmarks.failover.failover_scenarios import SCENARIOS
from benchmarks.failover.result import counts, file_name, read, result, usual, write
from benchmarks.failover.result_tables import FORWARDING, cpu_ms_per_request, markdown, rows
from chaos.fake_engine import EngineHang
from chaos.history.request_outcomes import OutcomeReason


def cell(scenario: str = "S5", contestant: str = "switchgear", **settings: object) -> ExperimentCell:
    setting = SCENARIOS[scenario].setting(ExperimentSetting(**settings))  # type: ignore[arg-type] # a test's settings
    return ExperimentCell(scenario=SCENARIOS[scenario], contestant=CONTESTANTS[contestant], setting=setting)


def seen(story, *, machine: float = 50.0, good: int = 80) -> object:
    """A result with ``good`` of 100 requests a second answered well."""
    outcomes = [
        story.outcome(
            number,
            100.0 + 0.1 * number,
            reason=OutcomeReason.OK if number < 100 or number % 100 < good else OutcomeReason.SHED,
        )
        for number in range(300)
    ]
    use = CpuUse(machine=machine, ours=40.0, processes={"engines": 9.0})
    return story.history(story.outage(0, EngineHang()), outcomes=outcomes, use=use)


def test_a_result_survives_its_file(story, tmp_path: Path) -> None:
    found = result(cell(), seen(story))
    (read_again,) = read([write(tmp_path, cell(), found)])
    assert list(read_again) == list(found)
    assert read_again["setting"] == json.loads(json.dumps(found["setting"]))
    assert read_again["measures"]["bins"][3]["at_s"] == found["measures"]["bins"][3]["at_s"]
    assert counts(read_again)
    assert read_again["measures"]["both"]["goodput_percent"] == pytest.approx(80.0)
    assert {one["what"] for one in read_again["checks"]} >= {"goodput fault+after", "wasted in fault"}


def test_cells_that_differ_in_anything_have_files_of_their_own() -> None:
    some = [
        cell(),
        cell("S4"),
        cell(contestant="static"),
        cell(seed=2),
        cell(load_percent=50.0),
        cell(max_wait_s=4.64),
        cell(fault_s=6.0),
        cell("two-proxies"),
        cell(demand=(1.0, 1.0)),
    ]
    assert len({file_name(one) for one in some}) == len(some)
    assert file_name(cell()) == "S5.80.switchgear.seed1.json"


def test_results_of_another_setting_are_not_mixed_into_the_usual_ones(story) -> None:
    plain, odd = result(cell(), seen(story)), result(cell(max_wait_s=1.0), seen(story))
    again = result(cell(seed=2, load_percent=50.0), seen(story))
    assert usual([plain, odd, again]) == [plain, again]


def test_a_run_that_does_not_count_is_in_no_table(story) -> None:
    good, noisy = result(cell(), seen(story)), result(cell("S2"), seen(story, machine=99.0))
    assert not counts(noisy)
    assert [row[0] for row in rows([good, noisy])] == ["S5"]
    assert "S2" not in markdown([good, noisy])


def test_seeds_are_averaged_and_the_worst_latency_is_shown(story) -> None:
    some = [result(cell(), seen(story, good=80)), result(cell(seed=2), seen(story, good=60))]
    ((*_, runs, goodput, _predicted), *_) = [row[:6] for row in rows(some)]
    assert runs == "2"
    assert goodput.endswith("→ 70.0")


def test_the_page_has_a_command_tables_pictures_and_what_was_missed(story, tmp_path: Path) -> None:
    some = [result(cell(contestant=name), seen(story)) for name in ("switchgear", "static")]
    page([*some, result(cell("S2"), seen(story, machine=99.0))], tmp_path / "failover.md")
    text = (tmp_path / "failover.md").read_text()
    command = "python -m benchmarks failover --scenario six --load 80 --contestant switchgear,static --seeds 1"
    assert command in text
    assert "| S5 | 80 % | static |" in text
    assert "traffic back never" in text
    assert "2 experiments count, 1 do not" in text
    for line in text.splitlines():
        if line.startswith("!["):
            assert (tmp_path / line.partition("](")[2].rstrip(")")).stat().st_size > 1000


def test_a_run_on_a_busy_machine_is_in_a_section_of_its_own(story, tmp_path: Path) -> None:
    busy = [result(cell(contestant=name), seen(story, machine=80.0)) for name in ("tuned", "vllm-router")]
    late = result(cell("S2", contestant="litellm"), seen(story, machine=130.0))
    page([result(cell(), seen(story))], tmp_path / "failover.md", [*busy, late])
    _, _, section = (tmp_path / "failover.md").read_text().partition("## Next to the routers of other projects")
    assert "Other programs used 40 to 90 %" in section
    # 9 % of a core is the engines', and nothing is known of tries and of the router.
    assert "| S5 | 80 % | vllm-router | 1 |" in section
    assert "| S2 | 80 % | litellm |" not in section
    assert "- S2, 80 %, litellm, seed 1:" in section


def test_the_cost_of_a_request_is_that_of_what_forwards_it(story) -> None:
    found = result(cell(), seen(story))
    found["use_percent"]["processes"] = {"engines": 9.0, "Envoys": 6.0, "router": 3.0, "agents": 12.0}
    # 38 s of 9 % of a core, for 300 requests.
    assert cpu_ms_per_request(found, FORWARDING) == pytest.approx(1e3 * 38 * 0.09 / 300)


def test_only_missing_and_invalid_results_are_run_again(story, tmp_path: Path, monkeypatch) -> None:
    made: list[str] = []
    machine = [50.0, 99.0, 50.0]

    async def run(one: ExperimentCell) -> object:
        made.append(one.scenario.name)
        return seen(story, machine=machine[len(made) - 1])

    monkeypatch.setattr(cli, "run", run)
    argv = ["--results", str(tmp_path), "--scenario", "S1,S2", "--contestant", "static"]
    assert main(argv) == 1  # S2 does not count
    assert made == ["S1", "S2"]
    assert main(argv) == 0  # nothing binds the static one
    assert made == ["S1", "S2", "S2"]
    assert main([*argv, "--page", str(tmp_path / "page.md")]) == 0
    assert made == ["S1", "S2", "S2"]


def test_a_promise_that_switchgear_breaks_is_the_exit_status(story, tmp_path: Path, monkeypatch) -> None:
    async def run(_: ExperimentCell) -> object:
        return seen(story, good=10)

    monkeypatch.setattr(cli, "run", run)
    argv = ["--results", str(tmp_path), "--scenario", "S2", "--contestant"]
    assert main([*argv, "static"]) == 0
    assert main([*argv, "switchgear"]) == 1


def test_a_budget_ends_the_work_before_it_is_exceeded(tmp_path: Path, monkeypatch, capsys) -> None:
    async def run(_: ExperimentCell) -> object:
        raise AssertionError("there is no time for it")

    monkeypatch.setattr(cli, "run", run)
    argv = ["--results", str(tmp_path), "--budget-minutes", "0.1", "--scenario", "S1,S2"]
    assert main(argv) == 1
    assert "4 left" in capsys.readouterr().out


def test_a_cell_that_cannot_be_made_does_not_end_the_others(story, tmp_path: Path, monkeypatch, capsys) -> None:
    async def run(one: ExperimentCell) -> object:
        if one.scenario.name == "S1":
            raise cli.ProcessError("no such program")
        return seen(story)

    monkeypatch.setattr(cli, "run", run)
    assert main(["--results", str(tmp_path), "--scenario", "S1,S2", "--contestant", "static"]) == 1
    assert "no such program" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["S2.80.static.seed1.json"]


def test_the_command_line_makes_the_cells() -> None:
    def cells(*argv: str) -> list[ExperimentCell]:
        options: argparse.Namespace = cli._parser().parse_args(argv)
        return cli.cells_of(options)

    some = cells("--scenario", "S1,dead", "--load", "50,80", "--seeds", "1,2", "--contestant", "envoy,naive")
    assert len(some) == 7 * 2 * 2 * 2
    assert len({file_name(one) for one in some}) == len(some)
    (quick,) = cells("--scenario", "streams", "--contestant", "envoy", "--quick", "--slots", "4", "--no-gate")
    assert (quick.setting.fault_s, quick.setting.slots) == (6.0, 32)
    assert quick.setting.streaming_share == 1.0
    assert not quick.setting.gate


@pytest.mark.parametrize("argv", [["--scenario", "S7"], ["--contestant", "nginx"]])
def test_unknown_names_are_reported(argv: list[str], tmp_path: Path, capsys) -> None:
    assert main([*argv, "--results", str(tmp_path)]) == 2
    assert argv[1] in capsys.readouterr().out
