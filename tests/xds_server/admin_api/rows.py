"""Rows of the read model with defaults, and their JSON."""

import json
from typing import Any

from xds_server.admin.json_http import as_json_dict
from xds_server.admin_api.objective_types import ObjectiveStatus, ObjectiveWindow
from xds_server.admin_api.status_types import (
    AgentStatus,
    EngineStatus,
    EventStatus,
    Explanation,
    PoliciesStatus,
    PoolStatus,
    ProxyStatus,
    TypeStatus,
)
from xds_server.admin_api.tenant_types import TenantStatus, TenantTraffic
from xds_server.admin_api.version_types import VersionStatus


def engine_status(engine: str = "e1", **fields: Any) -> EngineStatus:
    """A healthy engine of pool ``chat`` that reported just now."""
    known: dict[str, Any] = {
        "pool": "chat", "engine": engine, "address": "10.0.0.1", "port": 8000, "zone": "z1", "verdict": "ready",
        "evidence": "tokens advance", "report_age_s": 0.4, "health": "HEALTHY", "reason": "", "health_age_s": 60.0,
        "requests_in_flight": None, "requests_waiting": None,
    }  # fmt: skip
    return EngineStatus(**(known | fields))


def agent_status(**fields: Any) -> AgentStatus:
    """An agent that is connected."""
    known: dict[str, Any] = {
        "authority": "10.0.0.1:9000", "connected": True, "covering": True, "boot_id": "b1", "trouble": "",
    }  # fmt: skip
    return AgentStatus(**(known | fields))


def proxy_status(node: str = "n1", **fields: Any) -> ProxyStatus:
    """A gateway that connected a while ago."""
    known: dict[str, Any] = {
        "node": node, "zone": "z1", "role": "gateway", "pools": (), "peer": "ipv4:10.0.0.9:5", "protocol": "delta",
        "connected_s": 100.0, "types": (),
    }  # fmt: skip
    return ProxyStatus(**(known | fields))


def type_status(kind: str = "RDS", **fields: Any) -> TypeStatus:
    """A resource type that the proxy accepted."""
    known: dict[str, Any] = {"type": kind, "state": "SYNCED", "age_s": 12.4, "version": "v1", "resources": 1}
    return TypeStatus(**(known | fields))


def policies_status(**fields: Any) -> PoliciesStatus:
    """Policies that are accepted and served."""
    known: dict[str, Any] = {
        "state": "accepted", "digest": "d" * 64, "serving_digest": "0123456789abcdef", "stale": False,
        "age_s": 300.0, "pools": ("chat",), "routes": ("chat",),
    }  # fmt: skip
    return PoliciesStatus(**(known | fields))


def pool_status(pool: str = "chat", **fields: Any) -> PoolStatus:
    """A pool without traffic."""
    known: dict[str, Any] = {
        "pool": pool, "model": "llama", "engines": 2, "healthy": 2, "kept_in": 0, "level": 0, "level_reason": "",
        "ceiling": None, "held": None, "ceiling_reason": "", "slots": 16.0, "in_flight": None,
        "arrivals_per_s": None, "done_per_s": None, "shed_per_s": {}, "retries_per_s": None, "error_percent": None,
        "pressure": None, "utilization": None, "hedging": None, "hedge_delay_s": None, "answer_p99_s": None,
        "first_byte_p99_s": None, "telemetry_age_s": None, "shadow": (),
    }  # fmt: skip
    return PoolStatus(**(known | fields))


def objective_status(**fields: Any) -> ObjectiveStatus:
    """An objective of route ``talk`` that burns fast since 15 minutes."""
    rates = {"5m": 50.0, "30m": 25.0, "1h": 16.0, "6h": 2.5}
    known: dict[str, Any] = {
        "route": "talk", "objective": "total-p99", "pools": ("chat",), "target_percent": 99.0, "limit_s": 2.0,
        "state": "burns-fast", "budget_left_percent": -150.0, "measured_s": 21_600.0,
        "windows": {
            name: ObjectiveWindow(calls=1000.0, good_percent=100 - rate, burn_rate=rate)
            for name, rate in rates.items()
        },
    }  # fmt: skip
    return ObjectiveStatus(**(known | fields))


def tenant_status(**fields: Any) -> TenantStatus:
    """A tenant at ten times its quota."""
    known: dict[str, Any] = {
        "port": 8080, "tenant": "noisy", "requests": 600, "per": "minute", "quota_per_s": 10.0, "mode": "enforce",
        "proxies": 2,
        "traffic": TenantTraffic(
            admitted=100.0, over_quota=0.0, refused=900.0, served_per_s=10.0, refused_per_s=90.0
        ),
    }  # fmt: skip
    return TenantStatus(**(known | fields))


def version_status(number: int, **fields: Any) -> VersionStatus:
    """A version from the policy files."""
    known: dict[str, Any] = {
        "number": number, "digest": "0123456789abcdef", "at_unix_s": 1.7e9, "source": "files", "by": "files",
        "reason": "", "restores": 0, "files": 1, "size_bytes": 100, "serving": True,
    }  # fmt: skip
    return VersionStatus(**(known | fields))


def event_status(number: int = 1, **fields: Any) -> EventStatus:
    """An engine that was ejected."""
    known: dict[str, Any] = {
        "number": number, "at_unix_s": 1.7e9, "age_s": 10.0, "kind": "health", "subject": "chat/e1",
        "pool": "chat", "engine": "e1", "zone": "z1", "proxy": "", "before": "HEALTHY",
        "after": "UNHEALTHY", "evidence": "hung",
        "rule": "", "place": "", "returns": "", "until_in_s": None, "alarm": True, "numbers": {}, "times": 1,
        "first_age_s": 10.0,
    }  # fmt: skip
    return EventStatus(**(known | fields))


def explanation(subject: str = "chat/r1", **fields: Any) -> Explanation:
    """Explanation of a healthy engine."""
    known: dict[str, Any] = {"subject": subject, "kind": "engine", "well": True, "now": f"{subject} is in."}
    return Explanation(**(known | fields))


def document(row: Any) -> dict[str, Any]:
    """The row as the admin port writes it."""
    found: dict[str, Any] = json.loads(json.dumps(as_json_dict(row)))
    return found
