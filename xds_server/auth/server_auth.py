"""Authentication state of the running server: its certificate, the access rules, and their problems.

Without certificate no identity is proven, and none is needed on loopback. With a certificate and no rules, any
certificate from the CA may be any proxy. With rules, unnamed peers have no rights.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import grpc
import structlog
from prometheus_client.core import Metric

from engine.bounded_dict import BoundedDict
from engine.tls.certificate_files import CertificateError, KeyPair, RotatingKeyPair, expiry
from engine.tls.contexts import server_context
from engine.tls.grpc_credentials import channel_credentials, server_credentials
from engine.tls.identity_patterns import first_match
from policies.findings import PolicyErrors
from xds_server.admin_api.access_types import AccessStatus, CertificateStatus, RulesStatus
from xds_server.admin_api.status_types import FileDefect, FileProblem
from xds_server.auth.access_rules import Access
from xds_server.auth.admin_auth import AdminAuth
from xds_server.auth.authorization import Denial, authorize_proxy, expected_proxy_grant
from xds_server.auth.log_budget import LogBudget
from xds_server.auth.node_view import view_of
from xds_server.auth.rules_watcher import RulesWatcher
from xds_server.diagnosis.file_problems import expiry_problem
from xds_server.metrics.control_metrics import ControlPlaneMetrics, ProxyMetrics
from xds_server.model.memo import LastResult
from xds_server.model.view import View
from xds_server.serve_config import ConfigError, ServeConfig
from xds_server.xds import DeniedPeerError, NodeInfo

CHECK_EACH_S: Final = 1.0
EXPIRES_SOON_S: Final = 3600.0
"""Warn about certificates that expire within this time, repeatedly; some meshes issue them for a day."""

_TELL_SOON_EACH_S: Final = 600.0
_MOST_TOLD: Final = 1024

_STILL_COMES_S: Final = 45.0
"""Refused Envoys retry within 30 s; after this time they are gone."""

_log = structlog.get_logger()


class ServerAuth:
    """Built at start (``ConfigError`` if certificate or rules are unusable); ``run`` until cancelled."""

    def __init__(
        self,
        config: ServeConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._local = config.listen.is_loopback
        self._refused: dict[str, int] = {"identity": 0, "node": 0}
        self._lines = LogBudget(clock)
        self._turned_away: BoundedDict[str, tuple[float, str]] = BoundedDict(_MOST_TOLD)
        self._soon_told_s = float("-inf")
        try:
            self.keys = (
                None
                if config.tls is None
                else RotatingKeyPair(config.tls, on_change=_changed, on_trouble=_troubled)
            )
        except CertificateError as error:
            raise ConfigError(f"--tls-cert: {error}") from error
        self._channel: LastResult[grpc.ChannelCredentials] = LastResult()
        self._pair = None if self.keys is None else self.keys.pair
        try:
            self.rules = (
                None if config.access is None else RulesWatcher(config.access, judge=self._judge, tell=_weak_token)
            )
        except PolicyErrors as errors:
            raise ConfigError("--access: " + "; ".join(map(str, errors.exceptions))) from errors
        except ValueError as error:
            raise ConfigError(f"--access: {error}") from error

    # -- queries of ports and streams ----------------------------------------------------------------------

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Credentials of a gRPC port; None for plaintext."""
        return None if self.keys is None else server_credentials(self.keys)

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Credentials of the next outgoing connection, cached per certificate; None for plaintext."""
        if self.keys is None:
            return None
        pair = self.keys.reload()
        return self._channel.of((pair,), lambda: channel_credentials(pair))

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS context of an HTTP port; None for plaintext."""
        return None if self.keys is None else server_context(self.keys)

    def h2_context(self) -> ssl.SSLContext | None:
        """TLS context of the xDS port on our own transport, which requires certificates; None for plaintext."""
        return None if self.keys is None else server_context(self.keys, only_proved=True, protocols=("h2",))

    def admin_auth(self, config: ServeConfig) -> AdminAuth:
        """Authentication of the admin port."""
        return AdminAuth(
            rules=self.rules,
            secure=self.keys is not None,
            is_open=config.admin.is_loopback or self.keys is None,
            certified_writes=self.keys is not None and not config.trust_loopback,
            open_metrics=config.open_metrics,
            state=self.state,
        )

    def state(self) -> AccessStatus:
        """Certificate and rules in force, with problems of their files; for ``/v1/access``."""
        keys, rules = self.keys, self.rules
        return AccessStatus(
            certificate=None
            if keys is None
            else CertificateStatus(
                identities=keys.pair.identities,
                ends=expiry(keys.pair),
                left_s=round(keys.pair.ends_unix_s - self._wall()),
                trouble=keys.error,
            ),
            rules=None if rules is None else RulesStatus(file=str(rules.path), trouble=rules.trouble),
        )

    def file_problems(self) -> Iterable[FileProblem]:
        """Current problems with certificate, rules and tokens, for ``FileProblems``."""
        if self.keys is not None:
            file, pair = str(self.keys.files.certificate), self.keys.pair
            if self.keys.error:
                sentence = f"{self.keys.error}; the previous pair stays in use"
                yield FileProblem(what="certificate", defect=FileDefect.UNUSABLE, file=file, sentence=sentence)
            yield from expiry_problem(
                "certificate",
                file,
                begins_unix_s=pair.begins_unix_s,
                ends_unix_s=pair.ends_unix_s,
                now_unix_s=self._wall(),
            )
            if pair.trusts_until is not None:
                begins_s, ends_s = pair.trusts_until
                file = str(self.keys.files.authorities)
                yield from expiry_problem(
                    "certificate", file, begins_unix_s=begins_s, ends_unix_s=ends_s, now_unix_s=self._wall()
                )
        if self.rules is not None:
            yield from self.rules.file_problems()
            yield from self._refusing(str(self.rules.path))

    def _refusing(self, file: str) -> Iterable[FileProblem]:
        """Proxies that the rules keep refusing, with the latest as an example."""
        since_s = self._clock() - _STILL_COMES_S
        still = [reason for at_s, reason in self._turned_away.values() if at_s >= since_s]
        if still:
            more = f", and {len(still) - 1} more" if len(still) > 1 else ""
            sentence = f"refuses proxies that keep connecting: {still[-1]}{more}"
            yield FileProblem(what="rules", defect=FileDefect.REFUSES, file=file, sentence=sentence)

    def view_of(self, node: NodeInfo) -> View:
        """View of a proxy, limited by its grant; ``DeniedPeerError`` if it is not authorized."""
        keys = self._may_have_keys(node)
        if self.rules is None or self.keys is None:
            return view_of(node, keys=keys)
        judged = authorize_proxy(self.rules.access, node.identities, node.id, node.zone)
        if isinstance(judged, Denial):
            self._tell_of(node, judged)
            raise DeniedPeerError(judged.reason)
        self._turned_away.pop(node.id, None)
        return view_of(node, judged.pools or None, keys=keys)

    def view_expected(self, node: NodeInfo) -> View:
        """View of an absent proxy, assuming a certificate that matches a rule.

        ``DeniedPeerError`` without such a rule. Neither counted nor logged.
        """
        keys = self._local or self.keys is not None
        if self.rules is None or self.keys is None:
            return view_of(node, keys=keys)
        judged = expected_proxy_grant(self.rules.access, node.id, node.zone)
        if isinstance(judged, Denial):
            raise DeniedPeerError(judged.reason)
        return view_of(node, judged.pools or None, keys=keys)

    def _may_have_keys(self, node: NodeInfo) -> bool:
        """Whether private keys may be sent to this proxy: no other peer can read or request them.

        A loopback peer address proves nothing if other machines may connect, too: a forwarding proxy, e.g. of a
        mesh, runs on this machine and accepts any client.
        """
        return self._local or (self.keys is not None and bool(node.identities))

    def summary_credentials(self) -> tuple[grpc.ServerCredentials | None, Callable[[tuple[str, ...]], bool]]:
        """Credentials of the summary port, and the check of its watchers."""
        return self.server_credentials(), self.may_watch_summaries

    def may_watch_summaries(self, identities: Sequence[str]) -> bool:
        """Whether a control plane with these identities may watch summaries."""
        if self.rules is None or self.keys is None:
            return True
        return any(first_match(identities, one) is not None for one in self.rules.access.spec.summaries)

    # -- reloading -----------------------------------------------------------------------------------------

    async def run(self, on_rules: Callable[[], None], on_keys: Callable[[], None]) -> None:
        """Watch the files until cancelled; calls back on changed rules and certificates."""
        while True:
            await asyncio.sleep(CHECK_EACH_S)
            self.check_files(on_rules, on_keys)

    def check_files(self, on_rules: Callable[[], None], on_keys: Callable[[], None]) -> None:
        """Check the files once."""
        if self.keys is not None:
            pair = self.keys.reload()
            if pair is not self._pair:
                self._pair, self._soon_told_s = pair, float("-inf")
                on_keys()
            left_s = pair.ends_unix_s - self._wall()
            if left_s < EXPIRES_SOON_S and self._clock() - self._soon_told_s >= _TELL_SOON_EACH_S:
                self._soon_told_s = self._clock()
                _log.warning("certificate.ends", ends=expiry(pair), left_s=round(left_s), subject=pair.subject)
        if self.rules is not None:
            access, trouble = self.rules.access, self.rules.trouble
            if self.rules.current() is not access:
                _log.info("access.changed", file=str(self.rules.path))
                on_rules()
            if self.rules.trouble and self.rules.trouble != trouble:
                _log.error("access.refused", reason=self.rules.trouble, effect="the previous rules stay in force")

    def families(self) -> Iterable[Metric]:
        """Metrics for alerts."""
        if self.keys is not None:
            yield ControlPlaneMetrics.certificate_expiry_seconds.family(
                {("server",): self.keys.pair.ends_unix_s - self._wall()}
            )
            yield ControlPlaneMetrics.certificate_lifetime_seconds.family(
                {("server",): self.keys.pair.ends_unix_s - self.keys.pair.begins_unix_s}
            )
            yield ControlPlaneMetrics.certificate_trouble.family({(): float(bool(self.keys.error))})
        if self.rules is not None:
            yield ControlPlaneMetrics.access_refused.family({(): float(bool(self.rules.trouble))})
        yield ProxyMetrics.xds_refused_peers.family({(reason,): count for reason, count in self._refused.items()})

    def _judge(self, access: Access) -> str:
        for rules, name in ((access.spec.proxies, "proxies"), (access.spec.summaries, "summaries")):
            if rules and self.keys is None:
                return (
                    f"rules for {name} require TLS: set --tls-cert, --tls-key and --tls-ca, or remove spec.{name}"
                )
        return ""

    def _tell_of(self, node: NodeInfo, refused: Denial) -> None:
        """Count a refusal, and log it occasionally: refused proxies retry every second."""
        self._refused[refused.kind] += 1
        self._turned_away[node.id] = (self._clock(), refused.reason)
        if self._lines.take(node.host, f"{' '.join(node.identities)} {node.id}"):
            _log.warning("xds.peer_refused", node=node.id, zone=node.zone, reason=refused.reason)


def _changed(pair: KeyPair) -> None:
    _log.info("certificate.changed", subject=pair.subject, identities=pair.identities, ends=expiry(pair))


def _troubled(reason: str) -> None:
    _log.error("certificate.refused", reason=reason, effect="the previous pair stays in use")


def _weak_token(reason: str) -> None:
    _log.warning("access.token", reason=reason)
