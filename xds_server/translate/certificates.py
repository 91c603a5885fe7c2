"""Which certificates a view is sent, and which engines prove a name of their own."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from policies.pool import EnginePool
from policies.quantity import is_ip
from xds_server.secrets.secret import EngineSecret, Secrets
from xds_server.translate.engine_tls import authorities, authorities_name, certificate, certificate_name
from xds_server.translate.item import Item
from xds_server.translate.memo import Memo
from xds_server.translate.origins import secret_origins
from xds_server.type_urls import SECRET

_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


def secret_items(
    policies: PolicySet, pools: Iterable[str], secrets: Secrets, memo: Memo, *, keys: bool
) -> tuple[Item, ...]:
    """The secrets that these pools name, as far as there are any; what holds a private key only with ``keys``."""
    asked: dict[str, list[str]] = {}
    for pool in pools:
        tls = policies.pools[pool].spec.tls
        if tls is not None:
            asked.setdefault(tls.secret, []).append(pool)
    return tuple(
        item
        for name in sorted(asked)
        if (secret := secrets.get(name)) is not None
        for item in _items(secret, secret_origins(policies, asked[name]), memo, keys=keys)
    )


def _items(secret: EngineSecret, origins: tuple[str, ...], memo: Memo, *, keys: bool) -> Iterable[Item]:
    trusted = authorities_name(secret.name)
    yield memo.of(
        (SECRET, trusted, origins),
        (secret.authorities,),
        lambda: Item(type_url=SECRET, name=trusted, message=authorities(secret), origins=origins),
    )
    chain, key = secret.chain, secret.key
    if keys and chain is not None and key is not None:
        shown = certificate_name(secret.name)
        yield memo.of(
            (SECRET, shown, origins),
            (chain, key),
            lambda: Item(
                type_url=SECRET, name=shown, message=certificate(secret.name, chain, key), origins=origins
            ),
        )


def names_to_prove(pool: EnginePool) -> Mapping[str, str]:
    """The host names that engines of a pool have to prove, by engine; none where the pool names others for all.

    Only where they matter: they are a part of the endpoints, and an engine's name is no news to plain HTTP.
    """
    tls = pool.spec.tls
    if tls is None or tls.server_name is not None:
        return _NO_NAMES
    return MappingProxyType(
        {one.name: one.address.rstrip(".") for one in pool.spec.endpoints if not is_ip(one.address)}
    )
