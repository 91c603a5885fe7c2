"""HTTP clients of engines: address, TLS and API key of each, as its pool states them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import aiohttp

from engine.api_key_file import ApiKey
from engine.engine_http import EngineHttp, EngineTarget
from engine.probe_settings import ProbeSettings
from engine.tls.engine_trust import ClientTls, ClientTlsCache, EngineIdentity, TrustBundle, TrustError
from policies.engine_tls import EngineTls
from policies.model import PolicySet
from policies.pool import Endpoint, EnginePoolSpec, Probe
from xds_server.model.fleet import EngineId
from xds_server.model.secret import Secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTarget:
    """One engine to probe; ``secret`` names the certificates for TLS, ``key_secret`` the API key."""

    pool: str
    engine: str
    slots: int
    target: EngineTarget
    secret: str = ""
    key_secret: str = ""


def probe_settings(probe: Probe) -> ProbeSettings:
    """A policy's probe settings, as the judgement of one engine needs them."""
    return ProbeSettings(
        interval_s=probe.interval,
        timeout_s=probe.timeout,
        stall_after_s=probe.stall_after,
        unhealthy_after=probe.unhealthy_after,
        healthy_after=probe.healthy_after,
        path=probe.path,
        metrics_path=probe.metrics_path,
        count_paths=(probe.load_path,),
    )


def probe_targets(policies: PolicySet, besides: Collection[EngineId] = ()) -> Mapping[EngineId, ProbeTarget]:
    """The engines to probe: all of pools with an enabled probe, except ``besides``."""
    return MappingProxyType(
        {
            EngineId(name, endpoint.name): probe_target(name, pool.spec, endpoint)
            for name, pool in policies.pools.items()
            if pool.spec.probe.enabled
            for endpoint in pool.spec.endpoints
            if EngineId(name, endpoint.name) not in besides
        }
    )


def probe_target(name: str, pool: EnginePoolSpec, endpoint: Endpoint) -> ProbeTarget:
    """How to ask this engine of the pool ``name``."""
    return ProbeTarget(
        pool=name,
        engine=endpoint.name,
        slots=endpoint.slots or pool.slots_per_engine,
        target=EngineTarget(
            address=endpoint.address,
            port=endpoint.port,
            model=pool.model,
            probe=probe_settings(pool.probe),
            name=_name(pool.tls),
        ),
        secret="" if pool.tls is None else pool.tls.secret,
        key_secret=pool.probe.api_key_secret or "",
    )


def _name(tls: EngineTls | None) -> EngineIdentity | None:
    """The identity that an engine must prove: the same as to proxies."""
    if tls is None:
        return None
    return EngineIdentity(server_name=tls.server_name or "", alt_names=tls.subject_alt_names)


class EngineClients:
    """Makes clients; ``secrets`` returns the present certificates for TLS, ``api_keys`` the present API keys."""

    def __init__(
        self,
        *,
        secrets: Callable[[], Secrets],
        api_keys: Callable[[], Mapping[str, str]],
        clock: Callable[[], float],
        late_since: Callable[[float], bool],
    ) -> None:
        self._secrets = secrets
        self._api_keys = api_keys
        self._clock = clock
        self._late_since = late_since
        self._means: dict[tuple[str, tuple[str, ...]], Callable[[], ClientTls]] = {}

    def client(self, http: aiohttp.ClientSession, one: ProbeTarget) -> EngineHttp:
        """A client of this engine on a shared session."""
        return EngineHttp(
            http,
            one.target,
            self._clock,
            self._late_since,
            means=self._means_for(one),
            api_key=self._api_key_for(one.key_secret),
        )

    def keep(self, targets: Iterable[ProbeTarget]) -> None:
        """Forget TLS settings that none of these uses."""
        used = {(one.secret, one.target.name.alt_names) for one in targets if one.target.name}
        self._means = {key: means for key, means in self._means.items() if key in used}

    def _means_for(self, one: ProbeTarget) -> Callable[[], ClientTls] | None:
        """TLS settings of an engine, shared by all with the same certificates and names; None for plain HTTP."""
        if one.target.name is None:
            return None
        key = one.secret, one.target.name.alt_names
        if key not in self._means:
            self._means[key] = ClientTlsCache(lambda: self._trust(one.secret), one.target.name.alt_names)
        return self._means[key]

    def _api_key_for(self, secret: str) -> ApiKey:
        return lambda: self._api_keys().get(secret, "") if secret else ""

    def _trust(self, name: str) -> TrustBundle:
        secret = self._secrets().get(name)
        if secret is None:
            raise TrustError(f"no usable certificates named {name!r}; see --secrets")
        return TrustBundle(
            authorities=secret.authorities,
            chain=secret.chain,
            key=secret.key,
            ends_unix_s=secret.ends_unix_s,
        )
