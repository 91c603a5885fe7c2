"""Fake server for pages and tests: a fleet of any size, with every state."""

import random
import time
from collections.abc import Sequence
from dataclasses import replace

from engine.report import GpuSummary, GpuVitals
from tests.xds_server.admin_api.rows import objective_status, tenant_status
from xds_server.admin.views.context import UnknownNameError
from xds_server.admin_api.objective_types import ObjectiveStatus
from xds_server.admin_api.pool_history_types import PoolHistory, PoolHistoryList, PoolPoint
from xds_server.admin_api.status_types import (
    Condition,
    EngineStatus,
    EventStatus,
    Explanation,
    FileProblem,
    PoliciesStatus,
    PoolStatus,
    ProxyPoolStatus,
    ProxyStatus,
    ReachedLimit,
    Readiness,
    RefusedResource,
    RejectedObject,
    RolledBackResource,
    RuleStatus,
    SyncState,
    TypeStatus,
    ZoneStatus,
)
from xds_server.admin_api.tenant_types import TenantStatus
from xds_server.admin_api.usage_types import UsageStatus
from xds_server.admin_api.version_types import CanaryStatus
from xds_server.diagnosis.condition_log import ConditionLog
from xds_server.diagnosis.conditions import ServerState

_STATES: Sequence[tuple[str, str, str]] = (
    ("ready", "HEALTHY", ""),
    ("ready", "HEALTHY", ""),
    ("busy", "HEALTHY", ""),
    ("ready", "HEALTHY", ""),
    ("hung", "UNHEALTHY", "hung: no token for 1.4 s with 6 requests in flight, stallAfter 1s"),
    ("ready", "HEALTHY", ""),
    ("draining", "DRAINING", "drained by its agent"),
    ("ready", "HEALTHY", ""),
    ("dead", "UNHEALTHY", "dead: connection refused"),
    (
        "degraded",
        "HEALTHY",
        "kept in rotation: this would leave the pool with 40 % of its slots (floor: 50 %); XID 63",
    ),
    ("ready", "HEALTHY", ""),
    ("ready", "HEALTHY", ""),
)


class FakeServerBackend:
    """Fake ``AdminBackend`` with ``engines`` engines in ``zones`` zones of two pools."""

    def __init__(self, engines: int = 24, zones: int = 3, proxies: int = 4) -> None:
        self.rng = random.Random(7)
        self.began_unix_s = time.time() - 41 * 20
        self.rows = [self._engine(number, zones) for number in range(engines)]
        self.happened = [self._event(number) for number in range(1, 41)]
        self.count = proxies
        self.policy_state = "accepted"
        self.ready = True
        self.wrong: list[FileProblem] = []
        self.refused: list[RolledBackResource] = []
        self.tried: CanaryStatus | None = None
        self.rejected: Sequence[RejectedObject] = ()
        self.limits: Sequence[ReachedLimit] = ()
        self._log = ConditionLog(self._server_state)

    def _engine(self, number: int, zones: int) -> EngineStatus:
        verdict, health, reason = _STATES[number % len(_STATES)]
        held = {"busy": 8, "hung": 6, "dead": 0}.get(verdict, self.rng.randrange(8))
        return EngineStatus(
            pool="chat" if number % 5 else "small",
            engine=f"vllm-{number}",
            address="127.0.0.1",
            port=8000 + number,
            zone=f"zone-{'abcdefgh'[number % zones]}",
            verdict=verdict,
            evidence=reason,
            report_age_s=0.4,
            health=health,
            reason=reason,
            health_age_s=12.0,
            requests_in_flight=held,
            requests_waiting=0,
            kv_cache_usage_ratio=self.rng.random(),
            tokens_per_s=self.rng.random() * 900,
            gpu=GpuSummary(
                gpus=(GpuVitals(rank=0, utilisation_percent=self.rng.randrange(100), temperature_c=66),)
            ),
            floor=verdict == "degraded",
            in_flight=held,
            error_percent=0.0,
            done_per_s=self.rng.random() * 4,
            slots=8.0,
            ejector=None if health == "HEALTHY" else "verdict",
        )

    def _event(self, number: int) -> EventStatus:
        out = number % 3 == 0
        return EventStatus(
            number=number,
            at_unix_s=self.began_unix_s + number * 20,
            age_s=(40 - number) * 20.0,
            kind="health" if number % 7 else "level",
            subject=f"chat/vllm-{number}",
            pool="chat",
            engine=f"vllm-{number}",
            zone="zone-a",
            proxy="",
            before="HEALTHY" if out else "UNHEALTHY",
            after="UNHEALTHY" if out else "HEALTHY",
            evidence="hung: no token for 1.4 s" if out else "recovered: first successful probe",
            rule="spec.probe.stallAfter",
            place="chat.yaml:7",
            returns="1 successful probe",
            until_in_s=None,
            alarm=out,
            numbers={},
            times=1 + number % 4,
            first_age_s=3.0,
        )

    def change(self, name: str, **fields: object) -> None:
        """Change fields of an engine."""
        self.rows = [
            replace(row, **fields) if row.engine == name else row  # type: ignore[arg-type]
            for row in self.rows
        ]

    def stir(self, share: float) -> None:
        """Change the load of a share of the engines."""
        self.rows = [
            replace(row, in_flight=self.rng.randrange(9)) if self.rng.random() < share else row
            for row in self.rows
        ]

    def readiness(self) -> Readiness:
        return Readiness(ready=self.ready, reason="serving" if self.ready else "reading policies")

    def policies(self) -> PoliciesStatus:
        return PoliciesStatus(
            state=self.policy_state,
            digest="d" * 64,
            serving_digest="4f1c0ffee" * 7,
            stale=False,
            age_s=5.0,
            pools=("chat", "small"),
            routes=("chat",),
        )

    def file_problems(self) -> Sequence[FileProblem]:
        return self.wrong

    def rolled_back(self) -> Sequence[RolledBackResource]:
        return self.refused

    def canary(self) -> CanaryStatus | None:
        return self.tried

    def _server_state(self) -> ServerState:
        readiness = self.readiness()
        return ServerState(
            now_unix_s=self.began_unix_s,
            policies=self.policies(),
            proxies=self.proxies(),
            engines=self.rows,
            pools=self.pools(),
            file_problems=self.wrong,
            rolled_back=self.refused,
            canary=self.tried,
            rejected=self.rejected,
            limits=self.limits,
            not_ready="" if readiness.ready else readiness.reason,
        )

    def conditions(self) -> Sequence[Condition]:
        return self._log.current()

    def recent_conditions(self) -> Sequence[Condition]:
        return self.conditions()

    def engines(self) -> Sequence[EngineStatus]:
        return self.rows

    def pools(self) -> Sequence[PoolStatus]:
        return [self._pool(name) for name in ("chat", "small")]

    def _pool(self, name: str) -> PoolStatus:
        rows = [row for row in self.rows if row.pool == name]
        return PoolStatus(
            pool=name,
            model="llama",
            engines=len(rows),
            healthy=sum(row.health == "HEALTHY" for row in rows),
            kept_in=sum(row.floor for row in rows),
            level=2 if name == "chat" else 0,
            level_reason="pressure 1.2",
            ceiling=12 * len(rows),
            held=6,
            ceiling_reason="8 slots",
            slots=8.0 * len(rows),
            in_flight=sum(row.in_flight or 0 for row in rows),
            arrivals_per_s=40.0,
            done_per_s=sum(row.done_per_s or 0 for row in rows),
            shed_per_s={"interactive": 0.0, "batch": 3.5 if name == "chat" else 0.0},
            retries_per_s=0.7,
            error_percent=1.25,
            pressure=1.18 if name == "chat" else 0.4,
            utilization=0.8,
            hedging=name == "small",
            hedge_delay_s=0.2,
            answer_p99_s=3.4,
            first_byte_p99_s=0.9,
            telemetry_age_s=0.2,
            shadow=("straggler",) if name == "small" else (),
        )

    def objectives(self) -> Sequence[ObjectiveStatus]:
        return [objective_status()]

    def usage(self) -> Sequence[UsageStatus]:
        return ()

    def tenants(self) -> Sequence[TenantStatus]:
        return [tenant_status()]

    def pool_history(self, pool: str) -> PoolHistoryList:
        """Ten minutes of both pools, with an overload in the middle."""
        now_unix_s = time.time()
        points = tuple(
            PoolPoint(
                at_unix_s=now_unix_s - 10 * (59 - n),
                good_per_s=30.0 + n % 5 - (12 if 25 < n < 35 else 0),
                refused_per_s=9.0 if 25 < n < 35 else 0.0,
                failed_per_s=0.5,
                first_byte_p50_s=0.2,
                first_byte_p95_s=0.5,
                first_byte_p99_s=0.9 + (n % 7) / 10,
                total_p50_s=1.1,
                total_p95_s=2.2 + (n % 3) / 10,
                total_p99_s=3.4 if 25 < n < 35 else 2.6,
                ceiling=228,
                in_flight=75 + n,
            )
            for n in range(60)
        )
        return PoolHistoryList(
            interval_s=10.0,
            kept_s=900.0,
            since_unix_s=now_unix_s - 600,
            pools=tuple(PoolHistory(pool=name, points=points) for name in ("chat", "small") if pool in ("", name)),
        )

    def zones(self) -> Sequence[ZoneStatus]:
        return [
            ZoneStatus(
                pool="chat",
                zone=zone,
                engines=sum(row.zone == zone for row in self.rows),
                healthy=sum(row.zone == zone and row.health in ("HEALTHY", None) for row in self.rows),
                slots=8,
                in_flight=3,
                sends_percent={zone: 90.0},
                reason="local first",
                age_s=1.0,
                calls_per_s={zone: 27.5, "zone-a": 3.1},
            )
            for zone in sorted({row.zone for row in self.rows})
        ]

    def proxies(self) -> Sequence[ProxyStatus]:
        return [self._proxy(number) for number in range(self.count)]

    def _proxy(self, number: int) -> ProxyStatus:
        refused = number == 1
        kind = TypeStatus(
            type="routes",
            state=SyncState.NACK if refused else SyncState.SYNCED,
            age_s=3.0,
            version="abc",
            resources=1,
            refused=(
                RefusedResource(name="port-10000", version="abc", origins=("chat.yaml:30",), reason="bad regex"),
            )
            if refused
            else (),
        )
        return ProxyStatus(
            node=f"gateway-{number}",
            zone=f"zone-{'abc'[number % 3]}",
            role="gateway",
            pools=(),
            peer="ipv4:127.0.0.1:5",
            protocol="delta",
            connected_s=60.0,
            types=(replace(kind, type="clusters", state=SyncState.SYNCED, refused=()), kind),
            traffic=(
                ProxyPoolStatus(
                    pool="chat",
                    arrivals_per_s=12.5,
                    shed_per_s=1.0,
                    retries_per_s=0.1,
                    in_flight=9,
                    ceiling_interactive=30,
                    ceiling_batch=10,
                    telemetry_age_s=0.1,
                    shuns=(),
                ),
            ),
        )

    def events(self, name: str, since: int) -> Sequence[EventStatus]:
        return [event for event in self.happened if event.number > since and name in ("", event.engine)]

    def why(self, name: str) -> Explanation:
        row = next((row for row in self.rows if name in (row.engine, f"{row.pool}/{row.engine}")), None)
        if row is None:
            raise UnknownNameError(f"no engine, zone or pool {name!r}")
        return Explanation(
            subject=name,
            kind="engine",
            well=row.health == "HEALTHY",
            now=f"{name} is {row.health}.",
            because=(row.reason or "No evidence against it.",),
            ruled_by=(RuleStatus(field="spec.probe.stallAfter", value="1s", place="chat.yaml:7"),),
            returns="1 successful probe",
            past=tuple(self.happened[-3:]),
        )
