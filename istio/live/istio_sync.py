"""Sync of decisions to Istio: what ``switchgear istio run`` adds to a server."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.report import ReportSource
from istio.live.desired_state import DesiredState, desired_state
from istio.live.endpoint_writer import EndpointWriter
from policies.model import PolicySet
from xds_server.app.policy_feed import ServerContext
from xds_server.decide.decisions import Decisions, EngineDecision, Health
from xds_server.decide.ejection.report_evidence import out_for_s
from xds_server.k8s.client_config import ClientConfig, open_kube_api
from xds_server.k8s.kube_api import ApiError, KubeApi
from xds_server.k8s.lease import LeaderElector
from xds_server.model.fleet import EngineId
from xds_server.model.memo import LastResult, reuse_equal
from xds_server.model.pod_state import PodRef
from xds_server.model.token_bucket import RateLimit
from xds_server.serve_config import ConfigError

Pods = Mapping[EngineId, PodRef]


@dataclass(frozen=True, slots=True, kw_only=True)
class IstioSyncSettings:
    """Target and settings. ``namespace`` is that of pools that name none; ``lease`` is NAMESPACE/NAME."""

    access: ClientConfig
    namespace: str
    namespaces: tuple[str, ...]
    lease: str
    identity: str
    writes_per_s: float
    dry_run: bool


class UnprovenEngines:
    """Engines without evidence in this process.

    Labels outlive the process that wrote them, and a new one counts engines as ready until it has looked often
    enough. So an engine that is out stays out until then, but no longer than old evidence counts.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first_s: dict[EngineId, float] = {}
        self._proven: set[EngineId] = set()
        self._found: frozenset[EngineId] = frozenset()

    def of(self, policies: PolicySet, decisions: Decisions) -> frozenset[EngineId]:
        """Those of them that are decided about now; each once proven stays so."""
        now_s, engines = self._clock(), decisions.engines
        self._first_s = {key: self._first_s.get(key, now_s) for key in engines}
        self._proven &= engines.keys()
        for key, decision in engines.items():
            pool = policies.pools.get(key.pool)
            if pool is None or key in self._proven:
                continue
            probe = pool.spec.probe
            waited = now_s - self._first_s[key] >= out_for_s(ReportSource.PROBE, probe)
            if is_evidence(decision) or waited or not probe.enabled:
                self._proven.add(key)
        self._found = reuse_equal(self._found, frozenset(engines.keys() - self._proven))
        return self._found


def is_evidence(decision: EngineDecision) -> bool:
    """Whether a decision rests on more than that nothing is known: not on one failed probe of several, either."""
    if decision.health is not Health.HEALTHY or decision.floor or decision.shadow is not None:
        return True
    return decision.traffic_percent < 100 or (decision.verdict is not None and decision.verdict.good)


class IstioSync:
    """Tells Istio which engines serve, for as long as it runs."""

    def __init__(self, settings: IstioSyncSettings, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._desired: LastResult[DesiredState] = LastResult()
        self._unproven = UnprovenEngines()

    async def run(self, around: ServerContext, pods: Callable[[], Pods]) -> None:
        """Tell until cancelled; ``ConfigError`` where nothing says how to reach the cluster."""
        settings = self._settings
        try:
            async with open_kube_api(settings.access) as api:
                await endpoint_writer(api, settings, lambda: self._wanted(around, pods()), self._tell).run()
        except ApiError as error:
            raise ConfigError(f"Istio's objects cannot be written: {error.message}") from error

    def _wanted(self, around: ServerContext, pods: Pods) -> DesiredState | None:
        """What is wanted by the newest decisions; None before there are any that engines had their say in."""
        built = around.reconciler.built
        if built is None or not around.reconciler.ready.is_set():
            return None
        inputs, namespace = built.inputs, self._settings.namespace
        unproven = self._unproven.of(inputs.policies, built.decisions)
        return self._desired.of(
            (built, pods, unproven),
            lambda: desired_state(
                inputs.policies, inputs.fleet, built.decisions, pods, namespace=namespace, unproven=unproven
            ),
        )


def endpoint_writer(
    api: KubeApi, settings: IstioSyncSettings, want: Callable[[], DesiredState | None], tell: Callable[[str], None]
) -> EndpointWriter:
    """The steward that these settings ask for."""
    namespace, _, name = settings.lease.partition("/")
    return EndpointWriter(
        api,
        LeaderElector(api, namespace=namespace, name=name, identity=settings.identity),
        want,
        namespaces=settings.namespaces,
        rate=RateLimit(burst=max(1.0, 5 * settings.writes_per_s), per_s=settings.writes_per_s),
        dry_run=settings.dry_run,
        tell=tell,
    )
