"""How far the policies that are served have come: which proxies, of which replica, hold what was made of them."""

from dataclasses import dataclass

from xds_server.kube.presence import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Programming:
    """How far ``digest`` has come. ``waiting`` names replicas whose proxies have not all confirmed it yet."""

    digest: str
    proxies: int
    waiting: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
