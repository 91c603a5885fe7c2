"""The control plane's decisions, told to Istio: what ``switchgear istio run`` adds to a running server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from istio.live.steward import Steward
from istio.live.wanted import Wanted, wanted
from xds_server.bucket import Rate
from xds_server.config import ConfigError
from xds_server.fleet import EngineId
from xds_server.kube.api import Api, ApiError
from xds_server.kube.connecting import Access, connected
from xds_server.kube.lease import Lease
from xds_server.kube.objects import PodRef
from xds_server.offers.feed import Around
from xds_server.pipeline import Built

Pods = Mapping[EngineId, PodRef]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Whom to tell, and how. ``namespace`` is that of pools that name none; ``lease`` is NAMESPACE/NAME."""

    access: Access
    namespace: str
    namespaces: tuple[str, ...]
    lease: str
    identity: str
    writes_per_s: float
    dry_run: bool


class IstioOutlet:
    """Tells Istio which engines serve, for as long as it runs."""

    def __init__(self, settings: Settings, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._made: tuple[Built, Pods, Wanted] | None = None

    async def run(self, around: Around, pods: Callable[[], Pods]) -> None:
        """Tell until cancelled; ``ConfigError`` where nothing says how to reach the cluster."""
        settings = self._settings
        try:
            async with connected(settings.access) as api:
                await steward(api, settings, lambda: self._wanted(around, pods()), self._tell).run()
        except ApiError as error:
            raise ConfigError(f"Istio's objects cannot be written: {error.message}") from error

    def _wanted(self, around: Around, pods: Pods) -> Wanted | None:
        """What is wanted by the newest decisions; None before there are any that engines had their say in."""
        built = around.reconciler.built
        if built is None or not around.reconciler.ready.is_set():
            return None
        made = self._made
        if made is None or made[0] is not built or made[1] is not pods:
            policies, fleet = built.inputs.policies, built.inputs.fleet
            want = wanted(policies, fleet, built.decisions, pods, namespace=self._settings.namespace)
            self._made = made = (built, pods, want)
        return made[2]


def steward(
    api: Api, settings: Settings, want: Callable[[], Wanted | None], tell: Callable[[str], None]
) -> Steward:
    """The steward that these settings ask for."""
    namespace, _, name = settings.lease.partition("/")
    return Steward(
        api,
        Lease(api, namespace=namespace, name=name, identity=settings.identity),
        want,
        namespaces=settings.namespaces,
        rate=Rate(burst=max(1.0, 5 * settings.writes_per_s), per_s=settings.writes_per_s),
        dry_run=settings.dry_run,
        tell=tell,
    )
