"""What proxies are entrusted with: certificates for engines, those that policies ask for, and who is sent none.

Private keys go to proxies that proved who they are, or that can only be on this machine. Others are served all the
rest: their connections to engines that ask for a certificate fail, and it is told here who and why.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

import structlog
from prometheus_client.core import Metric

from policies.engine_tls import unusable_secret
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
from xds_server.serve_config import ServeConfig
from xds_server.translate.visibility import visible_policies

WITHHOLDING_REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "plaintext": "they come in plain text, where anybody could ask for it: give this server --tls-cert",
        "nameless": "their certificates prove no name: give them a URI or a DNS name",
        "grpc": "a gRPC client takes no certificates by xDS: give its channel credentials of its own",
    }
)
"""Why a proxy is sent no private key, or in the last case nothing at all of TLS."""

_SHOWN: Final = 3
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Withheld:
    """One secret that some proxies are not sent, for one reason."""

    reason: str
    secret: str


class PoliciesInUse(Protocol):
    """The policies whose secrets are kept: the reconciler's."""

    @property
    def serving(self) -> ServingPolicies | None:
        """What is served now."""
        ...

    @property
    def pending_policies(self) -> Iterable[PolicySet]:
        """What was judged already and may be served yet."""
        ...


class SecretDistributor:
    """``nodes`` gives the view of each connected proxy. Until ``follow`` no policy names a secret."""

    def __init__(self, config: ServeConfig, nodes: Callable[[], Mapping[str, View]]) -> None:
        self._nodes = nodes
        self._policies: PoliciesInUse | None = None
        self._secure = config.tls is not None
        self._restored: frozenset[str] = frozenset()
        self._told: frozenset[_Withheld] = frozenset()
        self._certificates: LastResult[Certificates] = LastResult()
        self.folder = SecretFolder(config.secrets, in_use=self._in_use)

    def follow(self, policies: PoliciesInUse) -> None:
        """Keep the secrets of these policies from now on."""
        self._policies = policies

    async def run(self, *on_change: Callable[[], None]) -> None:
        """Follow the folder until cancelled; tells when what can be used is different."""

        def tell() -> None:
            for one in on_change:
                one()

        await self.folder.run(tell)

    def certificates(self) -> Certificates:
        """What is translated with; the same object while nothing changes."""
        current, restored = self.folder.current, self._restored
        return self._certificates.of(
            (current, restored), lambda: Certificates(secrets=current, certified=restored)
        )

    def engine_credentials(self) -> Secrets:
        """What engines are asked by."""
        return self.folder.current

    def restore(self, certified: Collection[str]) -> None:
        """Note which secrets had a certificate for proxies when the last run ended."""
        self._restored = frozenset(certified)

    def certified(self) -> tuple[str, ...]:
        """Which of those that are asked for have a certificate for proxies, for the next run to know."""
        now = self.certificates()
        return tuple(sorted(name for name in self._asked_for() if now.has_certificate(name)))

    def errors(self, policies: PolicySet) -> tuple[PolicyError, ...]:
        """Every pool that names a secret which cannot be used."""
        found = (
            self.error(
                tls.secret, policies.origin("EnginePool", name, "spec.tls.secret") or origin(name, WHOLE_FILE)
            )
            for name, pool in policies.pools.items()
            if (tls := pool.spec.tls) is not None
        )
        return tuple(one for one in found if one is not None)

    def error(self, name: str, at: Origin) -> PolicyError | None:
        """That a pool names a secret, at this place, which cannot be used; None where it can."""
        current = self.folder.current
        return None if name in current else unusable_secret(at, name, self.folder.why_not(name), current)

    def file_problems(self) -> Iterable[FileProblem]:
        """What is wrong with secrets now, and who is not sent them."""
        found = tuple(self.folder.problems())
        yield from found
        # Served as before a restart, or as another replica accepted it: nothing else says that they are missing.
        for name in sorted(
            self._asked_for() - self.folder.current.keys() - {Path(one.file).name for one in found}
        ):
            sentence = f"{self.folder.why_not(name)}, and policies that are served name it: proxies are sent none"
            yield FileProblem(what="secret", defect=FileDefect.UNUSABLE, file=name, sentence=sentence)
        withheld = self._withheld()
        for one, nodes in withheld.items():
            shown = f"{', '.join(nodes[:_SHOWN])}{' and others' if len(nodes) > _SHOWN else ''}"
            sentence = f"not sent to {shown} ({len(nodes)}): {WITHHOLDING_REASONS[one.reason]}"
            if one not in self._told:
                _log.warning("secret.withheld", secret=one.secret, reason=one.reason, nodes=nodes[:_SHOWN])
            yield FileProblem(what="secret", defect=FileDefect.WITHHELD, file=one.secret, sentence=sentence)
        self._told = frozenset(withheld)

    def families(self) -> Iterable[Metric]:
        """What an alert needs."""
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

    def _withheld(self) -> Mapping[_Withheld, list[str]]:
        """Who is not sent what, and why; node ids in order."""
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
        for pool in visible_policies(policies, view).pools:
            tls = policies.pools[pool].spec.tls
            if tls is None:
                continue
            if view.role == GRPC_ROLE:
                yield _Withheld("grpc", tls.secret)
            elif now.has_certificate(tls.secret):
                yield _Withheld("nameless" if self._secure else "plaintext", tls.secret)


def _named(policies: PolicySet) -> frozenset[str]:
    return frozenset(one.spec.tls.secret for one in policies.pools.values() if one.spec.tls is not None)
