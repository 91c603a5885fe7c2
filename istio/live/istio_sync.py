"""Sync of decisions to Istio: what ``switchgear istio run`` adds to a server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from istio.live.desired_state import DesiredState, desired_state
from istio.live.endpoint_writer import EndpointWriter
from xds_server.app.policy_feed import ServerContext
from xds_server.k8s.client_config import ClientConfig, open_kube_api
from xds_server.k8s.kube_api import ApiError, KubeApi
from xds_server.k8s.lease import LeaderElector
from xds_server.model.fleet import EngineId
from xds_server.model.memo import LastResult
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


class IstioSync:
    """Tells Istio which engines serve, for as long as it runs."""

    def __init__(self, settings: IstioSyncSettings, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._desired: LastResult[DesiredState] = LastResult()

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
        return self._desired.of(
            (built, pods),
            lambda: desired_state(inputs.policies, inputs.fleet, built.decisions, pods, namespace=namespace),
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
