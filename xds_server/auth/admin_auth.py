"""Authentication for the admin port: caller identity, rights, rate limits, and the audit log.

Health is open to probes. With rules, everything else requires a certificate or token; without rules, any
certificate from the CA may read, and no caller may write. A loopback port without rules, and a port opened with
--insecure, are open to every peer; on a loopback port with certificates, changes require one from the CA.

A browser without certificate logs in with a token in a form and gets a cookie, because a page cannot send a
header with its event stream. The cookie only allows reading, whatever the token allows: so no foreign page can
make a browser submit orders.
"""

import asyncio
import ipaddress
import itertools
import json
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, replace
from operator import itemgetter
from typing import Final
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from prometheus_client.core import Metric

from engine.address import source_network
from engine.bounded_dict import BoundedDict
from engine.limited_listener import mark_authenticated
from engine.tls.contexts import peer_identities
from xds_server.admin_api.access_types import AccessStatus, AuditLog, AuditRecord
from xds_server.admin_api.endpoints import ACCESS, AUDIT
from xds_server.auth.access_rules import AdminRole
from xds_server.auth.authorization import Principal, principal_of
from xds_server.auth.reached_limits import PeerLimit, ReachedLimits
from xds_server.auth.rules_watcher import RulesWatcher
from xds_server.metrics.control_metrics import ControlPlaneMetrics
from xds_server.model.token_bucket import RateLimit, TokenBucket, take_token

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PUBLIC_PATHS: Final = frozenset({"/healthz", "/readyz"})
LOGIN: Final = "/login"
COOKIE: Final = "switchgear_session"
SESSION_S: Final = 12 * 3600
MAX_SESSIONS: Final = 1000
MAX_BUCKETS: Final = 4096
MAX_AUDIT: Final = 1000
FORM_S: Final = 10.0
"""Time limit for a login form; it is read before authentication."""

MAX_AUDIT_DETAIL: Final = 500
"""Maximum characters kept of caller input."""

CALL_LIMIT: Final = RateLimit(burst=300.0, per_s=100.0)
"""Per caller: dashboards and scripts send a few requests per second; limits a runaway script."""

FAILURE_LIMIT: Final = RateLimit(burst=20.0, per_s=0.2)
"""Per address: tolerates typing errors; brute force gets one attempt per 5 s."""

ANONYMOUS: Final = Principal(name="", role=AdminRole.WRITE)
"""Caller of an open port."""

PRINCIPAL: Final = web.RequestKey("CALLER", Principal)
"""Request key of the caller."""

AUDIT_DETAIL: Final = web.RequestKey("AUDIT_DETAIL", str)
"""Request key under which a handler records the requested change, if the path does not show it."""

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_log = structlog.get_logger()


class AdminAuth:
    """Middleware for the admin port, and its state.

    ``rules``: None without rules. ``secure``: clients use TLS. ``is_open``: without rules, every peer may do
    anything, but with ``certified_writes`` changes require a certificate. ``open_metrics``: /metrics is as open as
    health. ``state``: answer of /v1/access.
    """

    def __init__(
        self,
        *,
        rules: RulesWatcher | None = None,
        secure: bool = False,
        is_open: bool = True,
        certified_writes: bool = False,
        open_metrics: bool = False,
        state: Callable[[], AccessStatus] = AccessStatus,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        # Separate, so that unknown callers cannot displace the records of known ones.
        self._written: deque[tuple[int, AuditRecord]] = deque(maxlen=MAX_AUDIT)
        self._tried: deque[tuple[int, AuditRecord]] = deque(maxlen=MAX_AUDIT)
        self._numbers = itertools.count()
        self._rules = rules
        self._secure = secure
        self._state = state
        self._is_open = rules is None and is_open
        self._certified_writes = certified_writes
        self._open_paths = PUBLIC_PATHS | {"/metrics"} if open_metrics else PUBLIC_PATHS
        self._clock = clock
        self._wall = wall
        self._buckets: BoundedDict[tuple[str, str], TokenBucket] = BoundedDict(MAX_BUCKETS)
        self._sessions: BoundedDict[str, tuple[str, float]] = BoundedDict(MAX_SESSIONS)
        self.reached = ReachedLimits(clock)
        self._refused: dict[str, int] = {"unknown": 0, "role": 0, "rate": 0, "host": 0, "crowd": 0}

    def add_routes(self, app: web.Application) -> None:
        """Routes for login and access."""
        app.router.add_get(AUDIT.path, self._audit)
        app.router.add_get(ACCESS.path, self._access)
        if self._rules is not None:
            app.router.add_get(LOGIN, self._form)
            app.router.add_post(LOGIN, self._login)

    def families(self) -> Iterable[Metric]:
        """Number of refused requests."""
        yield ControlPlaneMetrics.admin_refused.family(
            {(reason,): count for reason, count in self._refused.items()}
        )

    # -- every request -------------------------------------------------------------------------------------

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Pass a request to ``handler``, or answer it here."""
        if request.path in self._open_paths:
            return await handler(request)
        writes = request.method not in _READS
        if request.path == LOGIN and self._rules is not None:
            return await handler(request)
        caller, refusal = self._judge(request, writes=writes)
        if caller is None or refusal is not None:
            assert refusal is not None  # noqa: S101  # for the type checker
            if caller is not None or refusal.status != 429:  # a flood is only counted
                self._note(request, caller, refusal.status, writes=writes)
            return refusal
        mark_authenticated(request.transport)
        request[PRINCIPAL] = caller
        status = 500
        try:
            answer = await handler(request)
            status = answer.status
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            self._note(request, caller, status, writes=writes)
        return answer

    def _judge(self, request: web.Request, *, writes: bool) -> tuple[Principal | None, web.Response | None]:
        peer = source_network(request.remote or "")
        if self._is_open:
            return self._judge_open(request, writes=writes)
        token, cookie = _token(request), request.cookies.get(COOKIE, "")
        if token and not self._left("failure", peer, FAILURE_LIMIT):
            return None, self._too_many(peer)
        caller = self._caller(request, token, cookie)
        if caller is None:
            if (token or writes) and not self._take("failure", peer, FAILURE_LIMIT):
                return None, self._too_many(peer)
            if request.method == "GET" and "text/html" in request.headers.get("Accept", "") and self._rules:
                self._refused["unknown"] += 1
                return None, web.Response(status=302, headers={"Location": LOGIN})
            return None, self._unknown(request)
        return caller, self._bounded(caller, writes=writes)

    def _judge_open(self, request: web.Request, *, writes: bool) -> tuple[Principal | None, web.Response | None]:
        identities = _identities(request)
        caller = Principal(name=identities[0], role=AdminRole.WRITE) if identities else ANONYMOUS
        refusal, peer = self._foreign(request), source_network(request.remote or "")
        if refusal is not None and writes and not self._take("failure", peer, FAILURE_LIMIT):
            return None, self._too_many(peer)
        if refusal is None and writes and self._certified_writes and not identities:
            if not self._take("failure", peer, FAILURE_LIMIT):
                return None, self._too_many(peer)
            return None, self._refuse(
                "unknown",
                401,
                "not authenticated: changes need a client certificate (--cert, --key), or start the server with "
                "--trust-loopback",
            )
        return caller, refusal

    def _foreign(self, request: web.Request) -> web.Response | None:
        """Refusal of a page whose foreign name resolves to this host (DNS rebinding)."""
        if not _is_rebound(request):
            return None
        return self._refuse("host", 403, "loopback requests must use localhost or an IP address as host")

    def _bounded(self, caller: Principal, *, writes: bool) -> web.Response | None:
        """Refusal of a known caller who exceeds the rate or the role."""
        if not self._take("call", caller.name, CALL_LIMIT):
            self.reached.add(PeerLimit.ADMIN, caller.name)
            return self._refuse("rate", 429, f"{caller.name} exceeds {CALL_LIMIT.per_s:g} requests per second")
        if writes and caller.role is not AdminRole.WRITE:
            return self._refuse("role", 403, self._why_not(caller))
        return None

    def _caller(self, request: web.Request, token: str, cookie: str) -> Principal | None:
        identities = _identities(request)
        if self._rules is None:
            return Principal(name=identities[0], role=AdminRole.READ) if identities else None
        access, tokens = self._rules.access, self._rules.tokens
        caller = principal_of(access, identities, token, tokens)
        if caller is None and cookie and (kept := self._sessions.get(cookie)) and kept[1] > self._clock():
            known = principal_of(access, (), kept[0], tokens)
            caller = None if known is None else replace(known, role=AdminRole.READ)
        return caller

    def _why_not(self, caller: Principal) -> str:
        if self._rules is None:
            return "without rules no changes are allowed: start the server with --access"
        return f"{caller.name} may only read: changes require a rule with role write, without browser cookie"

    def _unknown(self, request: web.Request) -> web.Response:
        how = "a client certificate" if self._secure else ""
        if self._rules is not None:
            how += (" or " if how else "") + "Authorization: Bearer TOKEN"
        proved = _identities(request)
        reason = f"no access rule names {', '.join(proved)}" if proved else "not authenticated"
        answer = self._refuse("unknown", 401, f"{reason}: send {how} named by an access rule")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    def _too_many(self, peer: str) -> web.Response:
        self.reached.add(PeerLimit.ADMIN, peer)
        return self._refuse("rate", 429, "too many wrong tokens from this address: wait a minute")

    def _refuse(self, reason: str, status: int, message: str) -> web.Response:
        self._refused[reason] += 1
        answer = web.json_response({"error": message}, status=status)
        if status == 429:
            answer.headers["Retry-After"] = "5"
        return answer

    def count_rejected_connection(self, host: str) -> None:
        """Count a connection refused at the limit."""
        self._refused["crowd"] += 1
        self.reached.add(PeerLimit.ADMIN, host)

    def still_authorized(self, request: web.Request) -> bool:
        """Whether the caller of this request may continue to read; rules can change during a stream."""
        return self._is_open or self._caller(request, _token(request), request.cookies.get(COOKIE, "")) is not None

    # -- rate limits ---------------------------------------------------------------------------------------

    def _left(self, kind: str, who: str, rate: RateLimit) -> bool:
        return take_token(self._buckets.get((kind, who)), rate, self._clock()) is not None

    def _take(self, kind: str, who: str, rate: RateLimit) -> bool:
        """Take a token from the bucket of ``who``; forgets the least used buckets above the limit."""
        fresh = take_token(self._buckets.get((kind, who)), rate, self._clock())
        if fresh is not None:
            self._buckets[kind, who] = fresh
        return fresh is not None

    # -- audit log -----------------------------------------------------------------------------------------

    def _note(self, request: web.Request, caller: Principal | None, status: int, *, writes: bool) -> None:
        if not writes:
            return
        one = AuditRecord(
            at_unix_s=round(self._wall(), 3),
            by=(caller.name if caller else "") or "unknown",
            peer=request.remote or "",
            what=f"{request.method} {request.rel_url.raw_path_qs} {request.get(AUDIT_DETAIL, '')}".rstrip()[
                :MAX_AUDIT_DETAIL
            ],
            status=status,
        )
        (self._tried if caller is None else self._written).append((next(self._numbers), one))
        _log.info("admin.write", by=one.by, peer=one.peer, what=one.what, status=status)

    async def _audit(self, _: web.Request) -> web.Response:
        both = sorted((*self._written, *self._tried), key=itemgetter(0))
        writes = AuditLog(writes=tuple(record for _, record in both))
        return web.json_response(asdict(writes), dumps=_dumps)

    async def _access(self, _: web.Request) -> web.Response:
        return web.json_response(asdict(self._state()), dumps=_dumps)

    # -- browsers ------------------------------------------------------------------------------------------

    async def _form(self, _: web.Request) -> web.Response:
        return _page("")

    async def _login(self, request: web.Request) -> web.StreamResponse:
        peer = source_network(request.remote or "")
        token = ""
        # Checked again with the token at hand: several bodies may have started before the limit was reached.
        if self._left("failure", peer, FAILURE_LIMIT):
            token = await _posted(request)
        if not self._left("failure", peer, FAILURE_LIMIT):
            self._refused["rate"] += 1
            return _page("Too many wrong tokens from this address. Wait a minute.", 429)
        rules = self._rules
        assert rules is not None  # noqa: S101  # the route exists only with them
        caller = principal_of(rules.access, (), token, rules.tokens)
        if caller is None:
            self._take("failure", peer, FAILURE_LIMIT)
            self._refused["unknown"] += 1
            return _page("Unknown token.", 401)
        name = secrets.token_urlsafe(32)
        self._sessions[name] = (token, self._clock() + SESSION_S)
        _log.info("admin.login", by=caller.name, peer=peer)
        answer = web.Response(status=303, headers={"Location": "/dashboard/"})
        answer.set_cookie(COOKIE, name, max_age=SESSION_S, httponly=True, samesite="Strict", secure=self._secure)
        return answer


async def _posted(request: web.Request) -> str:
    """Token in the form; empty if missing, unreadable or late."""
    try:
        async with asyncio.timeout(FORM_S):
            token = (await request.post()).get("token", "")
    except (
        LookupError,
        ValueError,
        TimeoutError,
        web.RequestPayloadError,
    ):  # missing or wrong charset, or timeout
        return ""
    return token.strip() if isinstance(token, str) else ""


def _is_rebound(request: web.Request) -> bool:
    """Whether a loopback request has a foreign host name, as in DNS rebinding to 127.0.0.1."""
    host_header = request.headers.get("Host", "")
    own = request.get_extra_info("sockname")
    if not host_header or not isinstance(own, tuple) or not ipaddress.ip_address(own[0]).is_loopback:
        return False
    try:
        host = (urlsplit(f"//{host_header}").hostname or "").rstrip(".")
        if host != "localhost":
            ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _identities(request: web.Request) -> tuple[str, ...]:
    """Identities proven by the client's certificate."""
    transport = request.transport
    return peer_identities(None if transport is None else transport.get_extra_info("ssl_object"))


def _token(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _dumps(value: Mapping[str, object]) -> str:
    return json.dumps(value, ensure_ascii=False)


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Switchgear: log in</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
</head><body><main><h1>Switchgear</h1><p role="alert">MESSAGE</p>
<form method="post" action="/login"><p><label>Token <input name="token" type="password" required autofocus
autocomplete="current-password"></label> <button>Log in</button></p></form>
<p>Use a token from the access rules. The session is read-only.</p></main></body></html>
"""


def _page(message: str, status: int = 200) -> web.Response:
    headers = {
        "Content-Security-Policy": (
            "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        ),
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    text = _PAGE.replace("MESSAGE", message)
    return web.Response(text=text, content_type="text/html", charset="utf-8", status=status, headers=headers)
