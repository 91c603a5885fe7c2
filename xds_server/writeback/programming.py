"""How far the policies that are served have come: which proxies hold what was made of them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A resource that proxies refused: the ``file:line`` places it was made from, and what they said."""

    origins: tuple[str, ...]
    resource: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Programming:
    """How far ``digest`` has come. ``waiting`` names replicas whose proxies have not all confirmed it yet."""

    digest: str
    proxies: int
    waiting: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
