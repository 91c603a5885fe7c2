"""Distribution of engine certificates to proxies: which policies name them, and which proxies are refused keys.

Private keys are sent only to proxies that proved their identity or can only be on this machine. Other proxies get
everything else: their connections to engines that require a certificate fail, and this module reports which and
why.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

import structlog
from prometheus_client.core import Metric

from policies.engine_tls import LISTENER_SECRET, POOL_SECRET, unusable_secret
from policies.findings import PolicyError
from policies.model import PolicySet
from policies.origin import WHOLE_FILE, Origin, origin
from xds_server.admin_api.status_types import FileDefect, FileProblem
from xds_server.metrics.control_metrics import ControlPlaneMetrics
from xds_server.model.memo import LastResult
from xds_server.model.policy_state import ServingPolicies
from xds_server.model.secret import Certificates, Secrets
from xds_server.model.view import GRPC_ROLE, View
from xds_server.secrets.secret_folder import SecretFolder
from xds_server.secrets.secret_validation import API_KEY
from xds_server.serve_config import ServeConfig
from xds_server.translate.visibility import visible_policies

WITHHOLDING_REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "plaintext": "plaintext connection; start this server with --tls-cert",
        "nameless": "their certificates contain no name; add a URI or DNS name",
        "grpc": "a gRPC client accepts no certificates by xDS; configure its channel credentials",
    }
)
"""Why a proxy gets no private key; in the last case nothing about TLS."""

_SHOWN: Final = 3
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Withheld:
    """A secret withheld from some proxies, with the reason."""

    reason: str
    secret: str


class PoliciesInUse(Protocol):
    """Policies whose secrets are kept: the reconciler's."""

    @property
    def serving(self) -> ServingPolicies | None:
        """The served policies."""
        ...

    @property
    def pending_policies(self) -> Iterable[PolicySet]:
        """Validated policies that may be served later."""
        ...


class SecretDistributor:
    """``nodes``: view of each connected proxy. Until ``follow`` no policy names a secret."""

    def __init__(self, config: ServeConfig, nodes: Callable[[], Mapping[str, View]]) -> None:
        self._nodes = nodes
        self._policies: PoliciesInUse | None = None
        self._secure = config.tls is not None
        self._restored: frozenset[str] = frozenset()
        self._told: frozenset[_Withheld] = frozenset()
        self._certificates: LastResult[Certificates] = LastResult()
        self.folder = SecretFolder(config.secrets, in_use=self._in_use)

    def follow(self, policies: PoliciesInUse) -> None:
        """Keep the secrets of these policies."""
        self._policies = policies

    async def run(self, *on_change: Callable[[], None]) -> None:
        """Watch the folder until cancelled; calls back when usable secrets change."""

        def tell() -> None:
            for one in on_change:
                one()

        await self.folder.run(tell)

    def certificates(self) -> Certificates:
        """Certificates for translation; the same object while unchanged."""
        current, restored = self.folder.current, self._restored
        return self._certificates.of(
            (current, restored), lambda: Certificates(secrets=current, certified=restored)
        )

    def api_keys(self) -> Mapping[str, str]:
        """API keys of engines for probes, by name; no proxy gets them."""
        return self.folder.api_keys

    def engine_credentials(self) -> Secrets:
        """Credentials for connections to engines."""
        return self.folder.current

    def restore(self, certified: Collection[str]) -> None:
        """Restore which secrets had a client certificate at the end of the last run."""
        self._restored = frozenset(certified)

    def certified(self) -> tuple[str, ...]:
        """Secrets in use with a client certificate, for the next run."""
        now = self.certificates()
        return tuple(sorted(name for name in self._asked_for() if now.has_certificate(name)))

    def errors(self, policies: PolicySet) -> tuple[PolicyError, ...]:
        """Error for every field that names an unusable secret."""
        pools = (
            self.error(tls.secret, policies.origin("EnginePool", name, POOL_SECRET) or origin(name, WHOLE_FILE))
            for name, pool in policies.pools.items()
            if (tls := pool.spec.tls) is not None
        )
        listeners = (
            self.error(secret, policies.origin("ModelRoute", name, path) or origin(name, WHOLE_FILE), path)
            for name, route in policies.routes.items()
            for path, secret in route.spec.listener.named_secrets()
        )
        return tuple(one for one in (*pools, *listeners) if one is not None)

    def error(self, name: str, at: Origin, path: str = POOL_SECRET) -> PolicyError | None:
        """Error for a field that names an unusable secret at this origin; None if usable.

        Listeners need the certificate, pools and external services only the authorities.
        """
        usable = {
            one.name for one in self.folder.current.values() if path != LISTENER_SECRET or one.chain is not None
        }
        if name in usable:
            return None
        known = name in self.folder.current
        reason = "tls.crt and tls.key are missing" if known else self.folder.why_not(name)
        return unusable_secret(at, name, reason, usable, path=path)

    def file_problems(self) -> Iterable[FileProblem]:
        """Current problems with secrets, and the proxies they are withheld from."""
        found = tuple(self.folder.problems())
        yield from found
        # Served as before a restart, or as another replica accepted it: only this shows that they are missing.
        for name in sorted(
            self._asked_for() - self.folder.current.keys() - {Path(one.file).name for one in found}
        ):
            sentence = f"{self.folder.why_not(name)}, but served policies name it: no proxy gets it"
            yield FileProblem(what="secret", defect=FileDefect.UNUSABLE, file=name, sentence=sentence)
        for name in sorted(self._key_secrets() - self.folder.api_keys.keys()):
            yield FileProblem(
                what="secret",
                defect=FileDefect.UNUSABLE,
                file=f"{name}/{API_KEY}",
                sentence="no usable API key, but served policies name it: probes are sent without",
            )
        withheld = self._withheld()
        for one, nodes in withheld.items():
            shown = f"{', '.join(nodes[:_SHOWN])}{' and others' if len(nodes) > _SHOWN else ''}"
            sentence = f"withheld from {shown} ({len(nodes)}): {WITHHOLDING_REASONS[one.reason]}"
            if one not in self._told:
                _log.warning("secret.withheld", secret=one.secret, reason=one.reason, nodes=nodes[:_SHOWN])
            yield FileProblem(what="secret", defect=FileDefect.WITHHELD, file=one.secret, sentence=sentence)
        self._told = frozenset(withheld)

    def families(self) -> Iterable[Metric]:
        """Metrics for alerts."""
        yield from self.folder.families()
        counts = dict.fromkeys(WITHHOLDING_REASONS, 0)
        for one, nodes in self._withheld().items():
            counts[one.reason] += len(nodes)
        yield ControlPlaneMetrics.secrets_withheld.family(
            {(reason,): float(count) for reason, count in counts.items()}
        )

    def _in_use(self) -> frozenset[str]:
        pending = () if self._policies is None else self._policies.pending_policies
        return self._asked_for().union(*map(_named, pending))

    def _serving(self) -> ServingPolicies | None:
        return None if self._policies is None else self._policies.serving

    def _asked_for(self) -> frozenset[str]:
        serving = self._serving()
        return frozenset() if serving is None else _named(serving.policies)

    def _key_secrets(self) -> frozenset[str]:
        serving = self._serving()
        pools = () if serving is None else serving.policies.pools.values()
        return frozenset(one.spec.probe.api_key_secret for one in pools if one.spec.probe.api_key_secret)

    def _withheld(self) -> Mapping[_Withheld, list[str]]:
        """Withheld secrets with the node ids in order."""
        serving, now = self._serving(), self.certificates()
        if serving is None or not self._asked_for():
            return {}
        found: dict[_Withheld, list[str]] = {}
        by_view: dict[View, frozenset[_Withheld]] = {}
        for node, view in sorted(self._nodes().items()):
            if view not in by_view:
                by_view[view] = frozenset(self._of_view(serving.policies, now, view))
            for one in by_view[view]:
                found.setdefault(one, []).append(node)
        return found

    def _of_view(self, policies: PolicySet, now: Certificates, view: View) -> Iterable[_Withheld]:
        if view.keys:
            return
        here = visible_policies(policies, view)
        refusal = "nameless" if self._secure else "plaintext"
        for route in chain.from_iterable(here.routes.values()):
            secret = route.spec.listener.secret
            if secret is not None and view.role != GRPC_ROLE and now.has_certificate(secret):
                yield _Withheld(refusal, secret)
        for pool in here.pools:
            tls = policies.pools[pool].spec.tls
            if tls is None:
                continue
            if view.role == GRPC_ROLE:
                yield _Withheld("grpc", tls.secret)
            elif now.has_certificate(tls.secret):
                yield _Withheld(refusal, tls.secret)


def _named(policies: PolicySet) -> frozenset[str]:
    pools = (one.spec.tls.secret for one in policies.pools.values() if one.spec.tls is not None)
    listeners = (secret for one in policies.routes.values() for _, secret in one.spec.listener.named_secrets())
    return frozenset((*pools, *listeners))
