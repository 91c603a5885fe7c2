"""The version of several resources together."""

from collections.abc import Iterable
from hashlib import blake2b

from xds_server.snapshot import Resource


def set_version(resources: Iterable[Resource]) -> str:
    """The version of a set of resources: a hash of their names and versions, in no order."""
    return version_of(sorted((item.name, item.version) for item in resources))


def version_of(pairs: Iterable[tuple[str, str]]) -> str:
    """The same of names and versions, in order."""
    return blake2b("\n".join(f"{name}\t{version}" for name, version in pairs).encode(), digest_size=8).hexdigest()
