"""What ``switchgear get`` shows of each kind of thing: its columns, and which of them are state, not figures."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from xds_server.diagnosis.check_result import Check
from xds_server.diagnosis.status_findings import on_engines, on_proxies, on_telemetry
from xds_server.model.text import age_text

Item = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. ``wide``: shown by ``-o wide`` only. ``state``: another value of it is a change to tell of."""

    title: str
    cell: Callable[[Item], str]
    wide: bool = False
    state: bool = False
    right: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """One kind of thing: where it is asked for, which list of the answer, and what is shown of each.

    ``parts`` are lists of the answer, one after the other. ``name`` tells one item from another.
    """

    path: str
    parts: tuple[str, ...]
    name: Callable[[Item], str]
    columns: tuple[Column, ...]
    none: str


def _plain(name: str, title: str = "", *, wide: bool = False, state: bool = False) -> Column:
    return Column(title=title or name, cell=lambda item: _text(item[name]), wide=wide, state=state, right=False)


def _figure(title: str, of: Callable[[Item], Any], form: str = "{:g}", *, wide: bool = False) -> Column:
    def cell(item: Item) -> str:
        value = of(item)
        return "-" if value is None else form.format(value)

    return Column(title=title, cell=cell, wide=wide, right=True)


def _age(title: str, name: str, *, wide: bool = False) -> Column:
    return Column(
        title=title, cell=lambda item: "-" if item[name] is None else age_text(item[name]), wide=wide, right=True
    )


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value in (None, "") else str(value)


def _engine_name(item: Item) -> str:
    return f"{item['pool']}/{item['engine']}"


def _p99(name: str) -> Callable[[Item], Any]:
    return lambda item: None if item[name] is None else item[name]["p99_s"]


def _notes(item: Item) -> Sequence[str]:
    """What else is to be known of an engine, most important first."""
    notes = []
    if item["order"]:
        notes.append(f"order: {item['order']}")
    if item["floor"]:
        notes.append("kept in")
    if item["traffic_percent"] < 100:
        notes.append(f"on trial, {item['traffic_percent']:g} %")
    if item["cut"]:
        notes.append("cut")
    if item["standing"] != "present" and item["ejector"] != "orchestrator":
        notes.append(f"{item['standing']}: {item['standing_reason']}")
    if item["shadow"] and item["shadow"] != item["health"]:
        notes.append(f"shadow: {item['shadow']}")
    if item["shunned_by"] and item["health"] == "HEALTHY":
        notes.append(f"kept out by {', '.join(item['shunned_by'])}")
    return notes


def _why(item: Item) -> str:
    calm = item["health"] == "HEALTHY" and not item["floor"]
    return "; ".join((*_notes(item), *([] if calm else [item["reason"]]))) or "-"


def _sum_of(name: str) -> Callable[[Item], Any]:
    return lambda item: sum(part[name] for part in item["traffic"]) if item["traffic"] else None


def _ceilings(item: Item) -> str:
    parts = [
        f"{part['pool']} {part['ceiling_interactive']}/{part['ceiling_batch']}"
        for part in item["traffic"]
        if part["ceiling_interactive"] is not None
    ]
    return ", ".join(parts) or "-"


def _shuns(item: Item) -> str:
    return ", ".join(f"{part['pool']}/{engine}" for part in item["traffic"] for engine in part["shuns"]) or "-"


def _sync(item: Item) -> str:
    return (
        ", ".join(f"{kind['type']} {kind['state']}" for kind in item["types"] if kind["state"] != "SYNCED") or "ok"
    )


def _revisions(by_region: Mapping[str, Mapping[str, int]]) -> str:
    """``eu 2.1.0 x3, 3.0.0 x1; us 2.1.0 x4``; nothing where no engine says a revision."""
    if not any(revision for counts in by_region.values() for revision in counts):
        return "-"
    return "; ".join(
        f"{region or '(no region)'} " + ", ".join(f"{one or '(none)'} x{count}" for one, count in counts.items())
        for region, counts in by_region.items()
    )


def _regions(rows: Sequence[Item]) -> str:
    """Where callers of each region go, those that stay at home left out."""
    away = [
        f"{one['region']} to " + ", ".join(f"{to} {percent:.0f}%" for to, percent in one["sends_percent"].items())
        for one in rows
        if one["region"] and list(one["sends_percent"]) != [one["region"]]
    ]
    return "; ".join(away) or ("at home" if rows else "-")


def _percents(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{zone or 'no zone'} {share:g} %" for zone, share in shares.items()) or "-"


def _transition(item: Item) -> str:
    before = f"{item['before']} -> " if item["before"] else ""
    times = f" x{item['times']}" if item["times"] > 1 else ""
    return f"{before}{item['after']}{times}"


def _answer(status: int) -> str:
    """What became of an attempt to change something: an HTTP status in words."""
    words = {401: "not let in", 403: "not allowed", 404: "no such thing", 409: "refused", 429: "too many"}
    if status < HTTPStatus.BAD_REQUEST:
        return "done"
    return words.get(status, "failed" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "asked wrongly")


def _codes(remarks: Callable[[Sequence[Item]], Iterable[Check]]) -> Column:
    """The codes of what is to be said of an item, for ``switchgear explain``."""
    return Column(
        title="code",
        cell=lambda item: ", ".join(dict.fromkeys(one.code for one in remarks([item]))) or "-",
        wide=True,
    )


_ENGINES: Final = (
    Column(title="engine", cell=_engine_name),
    _plain("zone", wide=True),
    Column(title="health", cell=lambda item: item["health"] or "UNKNOWN", state=True),
    _age("since", "health_age_s"),
    _plain("verdict", state=True),
    Column(title="standing", cell=lambda item: item["standing"], wide=True, state=True),
    Column(title="out by", cell=lambda item: item["ejector"] or "-", wide=True, state=True),
    _figure(
        "busy", lambda item: item["in_flight"] if item["in_flight"] is not None else item["requests_in_flight"]
    ),
    _figure("slots", lambda item: item["slots"], "{:.0f}", wide=True),
    _figure("err %", lambda item: item["error_percent"], "{:.0f}"),
    _figure("ok/s", lambda item: item["done_per_s"], "{:.1f}"),
    _figure("service s", lambda item: item["service_s"], "{:.2f}", wide=True),
    _figure("TTFT p99 s", _p99("time_to_first_token"), "{:.3f}", wide=True),
    _figure("TPOT p99 s", _p99("time_per_output_token"), "{:.3f}", wide=True),
    _codes(on_engines),
    Column(title="why", cell=_why),
)
_POOLS: Final = (
    _plain("pool"),
    Column(title="in", cell=lambda item: f"{item['healthy']}/{item['engines']}", state=True),
    _figure("kept", lambda item: item["kept_in"], wide=True),
    Column(title="level", cell=lambda item: str(item["level"]), state=True),
    _figure("busy", lambda item: item["in_flight"]),
    _figure("ceiling", lambda item: item["ceiling"]),
    _figure("held", lambda item: item["held"], wide=True),
    _figure("req/s", lambda item: item["arrivals_per_s"], "{:.1f}"),
    _figure("ok/s", lambda item: item["done_per_s"], "{:.1f}"),
    _figure("shed/s", lambda item: sum(item["shed_per_s"].values()), "{:.1f}"),
    _figure("err %", lambda item: item["error_percent"], "{:.0f}"),
    _figure("asked %", lambda item: None if item["pressure"] is None else 100 * item["pressure"], "{:.0f}"),
    _figure("retry/s", lambda item: item["retries_per_s"], "{:.1f}", wide=True),
    _figure("p99 s", lambda item: item["answer_p99_s"], "{:.2f}", wide=True),
    _figure("first p99 s", lambda item: item["first_byte_p99_s"], "{:.3f}", wide=True),
    Column(title="hedging", cell=lambda item: {None: "-", True: "on", False: "off"}[item["hedging"]], wide=True),
    Column(title="revisions", cell=lambda item: _revisions(item.get("revisions", {})), wide=True, state=True),
    Column(title="regions", cell=lambda item: _regions(item.get("regions", ())), wide=True, state=True),
    _plain("shadow", wide=True, state=True),
    _plain("ceiling_reason", "how", wide=True),
)
_ZONES: Final = (
    _plain("pool"),
    Column(title="zone", cell=lambda item: item["zone"] or "(none)"),
    Column(title="in", cell=lambda item: f"{item['healthy']}/{item['engines']}", state=True),
    _figure("slots", lambda item: item["slots"]),
    _figure("busy", lambda item: item["in_flight"]),
    Column(title="calls from here go to", cell=lambda item: _percents(item["sends_percent"]), state=True),
    _age("since", "age_s", wide=True),
    _plain("reason", "why", wide=True),
)
_PROXIES: Final = (
    _plain("node"),
    _plain("zone"),
    _plain("role"),
    _plain("protocol", wide=True),
    _age("up", "connected_s"),
    Column(title="sync", cell=_sync, state=True),
    _figure("req/s", _sum_of("arrivals_per_s"), "{:.1f}"),
    _figure("shed/s", _sum_of("shed_per_s"), "{:.1f}"),
    _figure("busy", _sum_of("in_flight"), "{:.0f}"),
    _figure("retry/s", _sum_of("retries_per_s"), "{:.1f}", wide=True),
    Column(title="ceiling (int/batch)", cell=_ceilings, wide=True),
    Column(title="keeps out", cell=_shuns, state=True),
    _codes(lambda items: (*on_proxies(items), *on_telemetry(items))),
    _plain("peer", wide=True),
)
_ORDERS: Final = (
    Column(title="engine", cell=_engine_name),
    _plain("action", state=True),
    _age("left", "left_s"),
    _plain("by"),
    Column(title="forced", cell=lambda item: "yes" if item["force"] else "no", wide=True),
    _plain("reason", "why"),
)
_EVENTS: Final = (
    _age("ago", "age_s"),
    _plain("subject"),
    _plain("kind"),
    Column(title="change", cell=_transition, state=True),
    _plain("place", "ruled by", wide=True),
    Column(title="failed requests", cell=lambda item: " ".join(item.get("requests") or ()), wide=True),
    _plain("evidence", "why"),
)
_AUDIT: Final = (
    Column(title="when", cell=lambda item: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(item["at_unix_s"]))),
    _plain("by"),
    Column(title="answer", cell=lambda item: _answer(item["status"]), state=True),
    _plain("status", wide=True),
    _plain("peer", "from", wide=True),
    _plain("what"),
)
_SHADOW: Final = (
    Column(
        title="subject", cell=lambda item: _engine_name(item) if "engine" in item else f"{item['pool']} (ceiling)"
    ),
    Column(
        title="would be out for", cell=lambda item: age_text(item["out_s"] if "engine" in item else item["over_s"])
    ),
    _figure("times", lambda item: item.get("times")),
    _figure("failed", lambda item: item.get("failed")),
    _figure("answered", lambda item: item.get("succeeded")),
    _figure("refused", lambda item: item.get("refused"), "{:.0f}"),
    _figure("capacity %", lambda item: item.get("capacity_percent"), "{:.0f}"),
    Column(title="now", cell=lambda item: "out" if item.get("out_now") else "-", state=True),
    _plain("reason", "why"),
)

TABLES: Final[Mapping[str, TableSpec]] = MappingProxyType(
    {
        "engines": TableSpec(
            path="/v1/engines",
            parts=("engines",),
            name=_engine_name,
            columns=_ENGINES,
            none="no engine is declared",
        ),
        "pools": TableSpec(
            path="/v1/pools",
            parts=("pools",),
            name=lambda item: str(item["pool"]),
            columns=_POOLS,
            none="no pool is served",
        ),
        "zones": TableSpec(
            path="/v1/zones",
            parts=("zones",),
            name=lambda item: f"{item['pool']} {item['zone']}",
            columns=_ZONES,
            none="no pool is served",
        ),
        "proxies": TableSpec(
            path="/v1/proxies",
            parts=("proxies",),
            name=lambda item: str(item["node"]),
            columns=_PROXIES,
            none="no proxy is connected",
        ),
        "orders": TableSpec(
            path="/v1/orders", parts=("orders",), name=_engine_name, columns=_ORDERS, none="no order is in force"
        ),
        "events": TableSpec(
            path="/v1/events",
            parts=("events",),
            name=lambda item: str(item["number"]),
            columns=_EVENTS,
            none="nothing has happened yet",
        ),
        "audit": TableSpec(
            path="/v1/audit",
            parts=("writes",),
            name=lambda item: f"{item['at_unix_s']} {item['peer']} {item['what']}",
            columns=_AUDIT,
            none="nobody has tried to change anything since the server started",
        ),
        "shadow": TableSpec(
            path="/v1/shadow",
            parts=("engines", "pools"),
            name=lambda item: f"{item['pool']}/{item.get('engine', '')}",
            columns=_SHADOW,
            none="nothing would have been done that was not done",
        ),
    }
)
