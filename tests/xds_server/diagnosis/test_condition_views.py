"""Every condition is the same in each view: status, doctor, top, metric, dashboard, custom resource.

``ROWS`` has a state of the server for each code with a severity. A new code without a row fails the first test.
"""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files as resources
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from policies.codes import REMARKS
from tests.xds_server.admin.dashboard.fake_server_backend import FakeServerBackend
from tests.xds_server.admin_api import rows
from tests.xds_server.k8s.status.status_fixtures import UNIX_S, document, scene
from xds_server.admin.admin_server import application
from xds_server.admin.dashboard.frame import frame, full_message
from xds_server.admin_api.server_types import ServerInfo
from xds_server.admin_api.status_types import (
    AdapterStatus,
    Condition,
    FileDefect,
    FileProblem,
    ProxyPoolStatus,
    ReachedLimit,
    RefusedResource,
    RejectedObject,
    RolledBackResource,
    Severity,
)
from xds_server.admin_api.version_types import CanaryStatus
from xds_server.cli import main
from xds_server.cli.top_screen import TopSelection, render_screen
from xds_server.diagnosis.conditions import ServerState, conditions, objects_by_code
from xds_server.diagnosis.live_state import LiveState
from xds_server.k8s.policy_object import PolicyObject
from xds_server.k8s.status.object_status import HEALTHY, condition, status_of
from xds_server.metrics.control_metrics import ControlPlaneMetrics
from xds_server.metrics.metric_registry import Metrics

NOW_UNIX_S = 1_800_000_000.0
ROUTE = document(kind="ModelRoute", namespace="ns", name="chat")
POOL = document(kind="EnginePool", namespace="ns", name="chat")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A state, and the custom resources that it concerns."""

    state: Mapping[str, Any] = field(default_factory=dict)
    of: Sequence[PolicyObject] = ()


def policies(**fields: Any) -> Row:
    return Row(state={"policies": rows.policies_status(**fields)})


def proxies(origins: tuple[str, ...] = (), **fields: Any) -> Row:
    refused = RefusedResource(name="port-1", version="v2", origins=origins, reason="bad regex")
    kind = rows.type_status(refused=(refused,) if origins else (), **fields)
    of = (ROUTE,) if origins else ()
    return Row(state={"proxies": (rows.proxy_status(types=(kind,)),)}, of=of)


def files(what: str, defect: FileDefect) -> Row:
    return Row(state={"file_problems": (FileProblem(what=what, defect=defect, file="/t/x", sentence="why"),)})


def engines(**fields: Any) -> Row:
    return Row(state={"engines": (rows.engine_status(**{"address": ""} | fields),)}, of=(POOL,))


def pool(**fields: Any) -> Row:
    known = FakeServerBackend(2)._pool("chat")
    calm = replace(known, level=0, level_reason="", shed_per_s={}, engines=1, healthy=1)
    return Row(state={"pools": (replace(calm, **fields),)}, of=(POOL,))


def limit(code: str) -> Row:
    return Row(state={"limits": (ReachedLimit(code=code, peers=("10.0.0.9 n1",), count=1, age_s=3.0),)})


SILENT = ProxyPoolStatus(
    pool="chat", arrivals_per_s=0.0, shed_per_s=0.0, retries_per_s=0.0, in_flight=0, ceiling_interactive=None,
    ceiling_batch=None, telemetry_age_s=None, shuns=(),
)  # fmt: skip
ROLLED_BACK = RolledBackResource(
    type="RDS", name="port-1", version="v2", origins=(f"{ROUTE.file}:7:3",), refused_by=("n1",), refusals=1,
    age_s=9.0, reason="bad regex", on_content_before=1, on_nothing=0, on_trial=0,
)  # fmt: skip
REJECTED = RejectedObject(
    kind="ModelRoute",
    namespace="ns",
    name="chat",
    file=ROUTE.file,
    sentence="it is not served; spec.model: is empty",
)

ROWS: Mapping[str, Row] = {
    "SG200": policies(state="refused"),
    "SG201": policies(state="held", held="would remove 9 of 10"),
    "SG202": policies(lost_s={"pods": 40.0}),
    "SG203": policies(stale=True),
    "SG204": proxies((f"{ROUTE.file}:7:3",), state="NACK"),
    "SG205": proxies(state="STALE", age_s=50.0),
    "SG206": Row(state={"proxies": ()}),
    "SG207": Row(state={"not_ready": "waiting for a first verdict on every engine"}),
    "SG208": engines(health="UNHEALTHY", reason="hung: no token for 5 s", verdict="hung"),
    "SG210": files("certificate", FileDefect.UNUSABLE),
    "SG211": files("certificate", FileDefect.ENDS),
    "SG212": files("certificate", FileDefect.ENDED),
    "SG213": files("rules", FileDefect.UNUSABLE),
    "SG214": files("token", FileDefect.UNUSABLE),
    "SG215": files("token", FileDefect.OPEN),
    "SG216": files("secret", FileDefect.UNUSABLE),
    "SG217": Row(state={"rolled_back": (ROLLED_BACK,)}, of=(ROUTE,)),
    "SG218": files("secret", FileDefect.WITHHELD),
    "SG219": Row(state={"canary": CanaryStatus(state="rolled-back", digest="5c1d", by="ann", ended_s=60.0)}),
    "SG222": engines(agent=rows.agent_status(connected=False, trouble="refused")),
    "SG223": engines(report_age_s=None, verdict=None, health=None),
    "SG224": Row(state={"proxies": (rows.proxy_status(traffic=(SILENT,)),)}),
    "SG225": files("rules", FileDefect.REFUSES),
    "SG227": engines(verdict="misconfigured", evidence="HTTP 401"),
    "SG228": Row(state={"engines": ()}, of=(POOL,)),
    "SG229": Row(state={"rejected": (REJECTED,)}, of=(ROUTE,)),
    "SG234": files("state", FileDefect.UNWRITTEN),
    "SG270": pool(level=3, level_reason="pressure 1.2"),
    "SG271": pool(shed_per_s={"batch": 2.0}),
    "SG272": pool(healthy=0),
    "SG273": engines(floor=True, reason="kept in rotation: below the floor"),
    "SG274": proxies(state="STALE", age_s=1.0),
    "SG275": Row(state={"canary": CanaryStatus(state="running", digest="5c1d", by="ann", percent=10.0)}),
    "SG276": engines(verdict="degraded"),
    "SG277": Row(state={"applied": "version 2 (5c1d), applied by ann,"}),
    "SG278": pool(adapters=(AdapterStatus(adapter="sql", engines=0),)),
    "SG279": pool(adapters=(AdapterStatus(adapter="sql", engines=1, wanted=2, trouble="e0: HTTP 404"),)),
    "SG280": limit("SG280"),
    "SG281": limit("SG281"),
    "SG282": limit("SG282"),
    "SG283": limit("SG283"),
    "SG284": limit("SG284"),
    "SG285": limit("SG285"),
    "SG286": limit("SG286"),
}


def state_of(row: Row) -> ServerState:
    calm: dict[str, Any] = {
        "now_unix_s": NOW_UNIX_S,
        "policies": rows.policies_status(),
        "proxies": (rows.proxy_status(),),
        "engines": (rows.engine_status(address=""),),
    }
    return ServerState(**(calm | dict(row.state)))


class Backend(FakeServerBackend):
    """A server in one state."""

    state = state_of(Row())

    def conditions(self) -> Sequence[Condition]:
        return conditions(self.state)


class Served:
    """An admin port in a thread of its own, for the commands."""

    def __init__(self, backend: Backend) -> None:
        metrics = Metrics()
        metrics.observe(
            lambda: [ControlPlaneMetrics.condition.family(objects_by_code(backend.recent_conditions()))]
        )
        about = SimpleNamespace(server_info=lambda: ServerInfo(**ABOUT))
        self.app = application(backend, metrics, inside=about)  # type: ignore[arg-type]
        self.metrics = metrics
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.runner = web.AppRunner(self.app)
        self.port = asyncio.run_coroutine_threadsafe(self._open(), self.loop).result(30)
        self.url = f"http://127.0.0.1:{self.port}"

    async def _open(self) -> int:
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        port: int = self.runner.addresses[0][1]
        return port

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(30)
        self.loop.close()


ABOUT: Mapping[str, Any] = {
    "python": "3.11.7", "libraries": {}, "platform": "Linux", "open_files": 10, "open_files_limit": 1024,
    "disk": None, "listen": "127.0.0.1:0", "gated_pools": (), "proxies": (), "now_unix_s": NOW_UNIX_S,
}  # fmt: skip


@pytest.fixture(scope="module")
def backend() -> Backend:
    return Backend(2)


@pytest.fixture(scope="module")
def served(backend: Backend) -> Iterator[Served]:
    made = Served(backend)
    yield made
    made.close()


def test_every_condition_has_a_row() -> None:
    assert set(ROWS) == {one.code for one in REMARKS.values() if one.severity}


def test_calm_server_has_no_condition() -> None:
    assert conditions(state_of(Row())) == ()


@pytest.mark.parametrize("code", ROWS)
def test_condition_is_the_same_in_every_view(
    code: str, backend: Backend, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.state = state_of(ROWS[code])
    (one,) = [found for found in backend.conditions() if found.code == code]
    known = REMARKS[code]
    assert (str(one.severity), one.fix, one.runbook) == (known.severity, known.fix, known.runbook)
    assert one.sentence

    # status: text, data and exit code
    limits = [str(severity) for severity in Severity]
    for fail_on in limits:
        answer = main(["status", "--admin", served.url, "--fail-on", fail_on, "-o", "json"])
        listed = json.loads(capsys.readouterr().out)["conditions"]
        worst = max(limits.index(found["severity"]) for found in listed)
        assert answer == (1 if worst >= limits.index(fail_on) else 0)
    (found,) = [found for found in listed if found["code"] == code]
    assert (found["severity"], found["sentence"], found["fix"]) == (known.severity, one.sentence, known.fix)
    main(["status", "--admin", served.url, "-o", "wide"])
    text = capsys.readouterr().out
    assert f"{known.severity} {code} {one.subject}: {one.sentence}" in text
    assert known.fix in text

    # doctor
    main(["doctor", "--admin", served.url, "--xds", f"127.0.0.1:{served.port}", "-o", "json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    (check,) = [check for check in checks if check["code"] == code]
    assert (check["severity"], check["sentence"], check["fix"]) == (known.severity, one.sentence, known.fix)

    # metric
    (family,) = [
        family
        for family in text_string_to_metric_families(served.metrics.text().decode())
        if family.name == "switchgear_condition"
    ]
    values = {(sample.labels["code"], sample.labels["severity"]): sample.value for sample in family.samples}
    assert set(values) == {(each.code, each.severity) for each in REMARKS.values() if each.severity}
    assert values[code, known.severity] == one.count
    assert values == objects_by_code(backend.conditions())

    # dashboard and top
    message = json.loads(json.dumps(full_message(frame(backend, NOW_UNIX_S))))
    (row,) = [row for row in message["tables"]["conditions"].values() if row["code"] == code]
    assert (row["severity"], row["sentence"], row["fix"]) == (known.severity, one.sentence, known.fix)
    assert row["runbook"] == known.runbook
    board = LiveState()
    board.take("frame", {**message, "tables": {"conditions": {"x": row}}})
    line = f"{known.severity} {code} {one.subject}: {one.sentence}"
    assert (line in render_screen(board, TopSelection(), 400, 60).plain) == (known.severity != "info")

    # custom resources
    for other in (ROUTE, POOL):
        status = condition(status_of(other, scene(other, conditions=backend.conditions()), {}, UNIX_S), HEALTHY)
        concerned = other in ROWS[code].of and known.severity != "info"
        assert (f"{line}. {known.fix}" in status["message"]) == concerned
        assert not concerned or status["status"] == "False"


def test_guide_of_the_dashboard_has_every_condition() -> None:
    guide = json.loads((resources("xds_server.admin.dashboard") / "page" / "guide.json").read_text())
    assert set(guide["codes"]) == set(ROWS)
    assert {one.runbook for one in REMARKS.values() if one.runbook} == set(guide["runbooks"])


@pytest.mark.parametrize(("fallback", "word"), [(True, "fallback"), (False, "no hedging")])
def test_level_2_is_called_fallback_only_where_there_is_one(fallback: bool, word: str) -> None:
    state = state_of(pool(level=2, level_reason="pressure 1.2", fallback=fallback))
    (one,) = [found for found in conditions(state) if found.code == "SG270"]
    assert one.sentence == f"degradation level 2 ({word}): pressure 1.2"
