"""``switchgear get`` and ``describe``: kubectl's ways to name, select and print."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from tests.xds_server.admin_api import rows
from tests.xds_server.cli import test_status
from tests.xds_server.cli.test_status import Server
from xds_server.admin_api.tenant_types import TenantPeriod, TenantTraffic
from xds_server.admin_api.usage_types import UsageStatus
from xds_server.cli import main

server = test_status.server


@pytest.fixture(autouse=True)
def full(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("SWITCHGEAR_ADMIN_URL", server.url)
    engines = [
        test_status.engine("e1", zone="a"),
        test_status.engine("e2", zone="b", health="UNHEALTHY"),
        test_status.engine("e1", pool="batch", zone="a"),
    ]
    server.pages["/v1/engines"] = {"engines": engines}
    server.pages["/v1/proxies"] = {"proxies": [test_status.proxy("gw-1", RDS="NACK"), test_status.proxy("gw-2")]}
    server.pages["/v1/pools"] = {"pools": [rows.document(rows.pool_status("chat"))]}
    server.pages["/v1/orders"] = {"orders": []}
    server.pages["/v1/audit"] = {"writes": []}
    return server


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    taken = capsys.readouterr()
    return code, taken.out, taken.err


@pytest.mark.parametrize("word", ["engines", "engine", "eng", "ENGINES"])
def test_types_have_singular_and_short_names(capsys: pytest.CaptureFixture[str], word: str) -> None:
    code, out, _ = shown(capsys, "get", word, "-o", "name")
    assert (code, out) == (0, "engine/chat/e1\nengine/chat/e2\nengine/batch/e1\n")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("engine", "chat/e2"), ["chat/e2"]),
        (("engines", "e1"), ["chat/e1", "batch/e1"]),
        (("engine/chat/e1", "eng/chat/e2"), ["chat/e1", "chat/e2"]),
    ],
)
def test_names_choose_rows(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], found: list[str]) -> None:
    code, out, _ = shown(capsys, "get", *words, "-o", "name")
    assert (code, out.split()) == (0, [f"engine/{one}" for one in found])


def test_output_name_is_input_name(capsys: pytest.CaptureFixture[str]) -> None:
    names = shown(capsys, "get", "engines,proxies", "-o", "name")[1].split()
    assert shown(capsys, "get", *names, "-o", "name")[1].split() == names
    assert names[-1] == "proxy/gw-2"


def test_missing_name_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = shown(capsys, "get", "engine", "e2", "e9", "-o", "name")
    assert (code, out, error) == (1, "engine/chat/e2\n", "engine 'e9' not found\n")


def test_one_name_gives_the_object_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(shown(capsys, "get", "engine", "e2", "-o", "json")[1])["engine"] == "e2"
    assert yaml.safe_load(shown(capsys, "get", "engine/e2", "-o", "yaml")[1])["engine"] == "e2"
    assert shown(capsys, "get", "engine", "e2", "-o", "jsonpath={.health}")[1] == "UNHEALTHY\n"
    assert len(json.loads(shown(capsys, "get", "engine", "e1", "-o", "json")[1])["engines"]) == 2


def test_expressions_print_fields(capsys: pytest.CaptureFixture[str]) -> None:
    template = 'jsonpath={range .items[*]}{.name}{"\\t"}{.zone}{"\\n"}{end}'
    assert shown(capsys, "get", "engines", "-o", template)[1] == "chat/e1\ta\nchat/e2\tb\nbatch/e1\ta\n"
    assert shown(capsys, "get", "engines", "-o", "jsonpath={.engines[*].engine}")[1] == "e1 e2 e1\n"
    columns = "custom-columns=ENGINE:.name,ZONE:.zone,NONE:.no"
    assert shown(capsys, "get", "eng", "-l", "zone=b", "-o", columns)[1].splitlines() == [
        "ENGINE   ZONE  NONE",
        "chat/e2  b     <none>",
    ]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("health!=HEALTHY", ["chat/e2"]),
        ("zone in (a),pool notin (batch)", ["chat/e1"]),
        ("zone=a", ["chat/e1", "batch/e1"]),
    ],
)
def test_selector_chooses_rows(capsys: pytest.CaptureFixture[str], selector: str, found: list[str]) -> None:
    out = shown(capsys, "get", "engines", "-l", selector, "--no-headers")[1]
    assert [line.split()[0] for line in out.splitlines()] == found


def test_empty_list_is_a_remark(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "get", "orders") == (0, "", "no orders are in force\n")
    assert shown(capsys, "get", "engines", "-l", "zone=z") == (0, "", "no engines that match\n")
    assert shown(capsys, "get", "orders", "-o", "name") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("engins",), "unknown type 'engins'; did you mean engines?"),
        (("zzz",), "use one of engines, pools,"),
        (("engines", "-l", "zoone=a"), "engines have no field 'zoone'; did you mean zone?"),
        (("engines", "-l", "a=b=c"), "is not KEY, !KEY"),
        (("engines", "--wach"), "--watch"),
        (("engines", "--by", "ann"), "--by works with orders, versions, audit, not with engines"),
        (("audit", "x"), "entries of audit have no names"),
        (("engine/e1", "e2"), "'e2' is not TYPE/NAME"),
        (("engines,pools", "e1"), "names go with one TYPE"),
        (("engines,pools", "-w"), "--watch goes with one TYPE"),
    ],
)
def test_usage_error_names_the_fix(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], problem: str
) -> None:
    code, out, error = shown(capsys, "get", *arguments)
    assert (code, out) == (2, "")
    assert problem in error


@pytest.mark.parametrize("columns", ["40", "80"])
@pytest.mark.parametrize("kind", ["engines", "proxies", "pools"])
def test_table_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    columns: str,
) -> None:
    piped = shown(capsys, "get", kind)[1].splitlines()
    monkeypatch.setenv("COLUMNS", columns)
    lines = shown(capsys, "get", kind)[1].splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert [line.split()[:2] for line in lines[1:]] == [line.split()[:2] for line in piped[1:]], (
        "name and state stay"
    )
    whole = shown(capsys, "get", kind, "-o", "wide")[1].splitlines()
    assert len(whole[0]) > len(piped[0])


def test_objectives_show_shares_burn_rates_and_budget(full: Server, capsys: pytest.CaptureFixture[str]) -> None:
    none = {"calls": 0.0, "good_percent": None, "burn_rate": None}
    idle = rows.objective_status(
        route="night",
        objective="good",
        limit_s=None,
        pools=("batch",),
        state="no-calls",
        budget_left_percent=None,
        windows=dict.fromkeys(("5m", "30m", "1h", "6h"), none),
    )
    listed = [rows.document(one) for one in (rows.objective_status(), idle)]
    full.pages["/v1/objectives"] = {"objectives": listed}
    code, out, _ = shown(capsys, "get", "objectives")
    assert code == 0
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "NAME STATE LIMIT TARGET% GOOD% 5M GOOD% 1H BURN 5M BURN 1H BUDGET%",
        "talk/total-p99 burns-fast 2s 99 50 84 50.0 16.0 -150",
        "night/good no-calls - 99 - - - - -",
    ]
    assert shown(capsys, "get", "obj", "talk", "-o", "name")[1] == "objective/talk/total-p99\n"
    assert shown(capsys, "get", "objectives", "--pool", "chat", "-o", "name")[1] == "objective/talk/total-p99\n"
    assert shown(capsys, "get", "obj", "-l", "state!=burns-fast", "-o", "name")[1] == "objective/night/good\n"
    assert "CALLS 1H" in shown(capsys, "get", "objectives", "-o", "wide")[1]
    one = json.loads(shown(capsys, "get", "objective/talk/total-p99", "-o", "json")[1])
    assert one["windows"]["1h"]["burn_rate"] == 16.0
    own = rows.objective_status(route="", pool="chat", objective="good", pools=("chat",))
    full.pages["/v1/objectives"] = {"objectives": [rows.document(one) for one in (rows.objective_status(), own)]}
    names = "objective/talk/total-p99\nobjective/pool/chat/good\n"
    assert shown(capsys, "get", "objectives", "-o", "name")[1] == names
    assert shown(capsys, "get", "obj", "chat", "-o", "name")[1] == "objective/pool/chat/good\n"
    full.pages["/v1/objectives"] = {"objectives": []}
    assert shown(capsys, "get", "objectives") == (0, "", "no route or pool has spec.objectives\n")


def test_usage_is_listed_by_day_and_exported_as_csv(full: Server, capsys: pytest.CaptureFixture[str]) -> None:
    today = datetime.now(UTC).date()
    used = [
        UsageStatus(
            day=(today - timedelta(days=days)).isoformat(),
            port=8080,
            tenant=tenant,
            model="chat",
            requests=requests,
            tokens=100 * requests,
            corrected=40 * requests,
        )
        for days, tenant, requests in ((3, "search", 7.0), (0, "search", 2.5), (0, "=others", 1.0))
    ]
    full.pages["/v1/usage"] = {"usage": [rows.document(one) for one in used]}
    code, out, _ = shown(capsys, "get", "usage", "search", "--since", "24h")
    assert code == 0
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "DAY TENANT MODEL REQUESTS TOKENS CORRECTED",
        f"{today} 8080/search chat 2 250 100",
    ]
    assert shown(capsys, "get", "usage", "-o", "csv", "-l", "day!=" + used[0].day)[1].splitlines() == [
        "day,port,tenant,model,requests,tokens,corrected",
        f"{today},8080,search,chat,2.5,250.0,100.0",
        f"{today},8080,'=others,chat,1.0,100.0,40.0",
    ]
    code, _, error = shown(capsys, "get", "usage,tenants", "-o", "csv")
    assert code == 2
    assert "one TYPE" in error
    full.pages["/v1/usage"] = {"usage": []}
    assert shown(capsys, "get", "usage") == (0, "", "no tenant has used anything\n")


def test_tenants_are_listed_with_quota_and_refusals(full: Server, capsys: pytest.CaptureFixture[str]) -> None:
    day = TenantPeriod(
        period="day", requests=100, tokens=None, used_requests=94, used_tokens=0, used_ratio=0.94, ends_at_unix_s=9
    )
    noisy = rows.tenant_status(periods=(day,))
    quiet = rows.tenant_status(tenant="others", requests=5, per="second", traffic=TenantTraffic())
    full.pages["/v1/tenants"] = {"tenants": [rows.document(one) for one in (noisy, quiet)]}
    code, out, _ = shown(capsys, "get", "tenants")
    assert code == 0
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "TENANT QUOTA MODE SERVED/S USED% DAY% MONTH% REFUSED/S ADMITTED OVER REFUSED SHARE/S LIMITED%",
        "8080/noisy 600/minute enforce 10.0 100 94 - 90.0 100 0 900 - -",
        "8080/others 5/second enforce 0.0 0 - - 0.0 0 0 0 - -",
    ]
    assert shown(capsys, "get", "ten", "noisy", "-o", "name")[1] == "tenant/8080/noisy\n"
    assert "PROXIES" in shown(capsys, "get", "tenants", "-o", "wide")[1]
    full.pages["/v1/tenants"] = {"tenants": []}
    assert shown(capsys, "get", "tenants") == (0, "", "no route has listener.tenants\n")


def test_describe_shows_what_why_shows(full: Server, capsys: pytest.CaptureFixture[str]) -> None:
    story = rows.document(rows.explanation(well=False, now="chat/e2 is ejected"))
    full.pages |= {"/v1/why?name=engine%3Achat%2Fe2": story, "/v1/why?name=chat%2Fe2": story}
    code, described, _ = shown(capsys, "describe", "engine/chat/e2")
    assert (code, described) == (0, shown(capsys, "why", "chat/e2")[1])
    assert json.loads(shown(capsys, "describe", "engine", "chat/e2", "-o", "json")[1])["now"] == story["now"]


def test_describe_proxy_shows_sync_and_refusals(full: Server, capsys: pytest.CaptureFixture[str]) -> None:
    full.pages["/v1/events"] = {"events": []}
    code, out, _ = shown(capsys, "describe", "px", "gw-1")
    assert code == 0
    assert "Name:       gw-1" in out
    assert "RDS: NACK for 12s" in out
    assert "refused: port-1 (routes.yaml:7:3): bad regex" in out
    told: Any = json.loads(shown(capsys, "describe", "proxy/gw-1", "-o", "json")[1])
    assert (told["node"], told["conditions"][0]["code"]) == ("gw-1", "SG204")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("proxy", "gw-3"), "no proxy 'gw-3' is connected; did you mean gw-"),
        (("engines",), "name one resource"),
        (("orders", "e1"), "describe works with engines, pools, zones, proxies"),
    ],
)
def test_describe_refuses_what_it_cannot_show(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], problem: str
) -> None:
    code, _, error = shown(capsys, "describe", *arguments)
    assert code == 2
    assert problem in error
