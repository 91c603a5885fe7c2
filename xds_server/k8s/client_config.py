"""Who the API server is and how to prove oneself to it: from a kubeconfig, or from what every pod is given."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from xds_server.k8s.kube_api import ApiError, KubeApi


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How to reach the API server: a kubeconfig and a context of it, or from inside a pod when both are absent."""

    kubeconfig: Path | None = None
    context: str = ""


@asynccontextmanager
async def open_kube_api(access: ClientConfig) -> AsyncIterator[KubeApi]:
    """A connection; ``ApiError`` with status 0 where there is no way to know whom to ask."""
    # Not at the top: it takes a second, and what is said of a cluster is known where none is.
    from kubernetes.aio.client import ApiClient, Configuration  # noqa: PLC0415
    from kubernetes.aio.config import (  # noqa: PLC0415
        ConfigException,
        load_incluster_config,
        load_kube_config,
    )
    from yaml import YAMLError  # noqa: PLC0415

    configuration = Configuration()
    try:
        if access.kubeconfig is not None:
            _look_at(access.kubeconfig)
        if access.kubeconfig is not None or access.context:
            await load_kube_config(  # type: ignore[no-untyped-call]  # kubernetes' config module has no types
                config_file=None if access.kubeconfig is None else str(access.kubeconfig),
                context=access.context or None,
                client_configuration=configuration,
            )
        else:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # the same
        # Whoever asks here decides by itself whether, and when, to ask again.
        configuration.retries = None  # 0 is for ever: aiohttp_retry counts up to it from one
        # Each watch holds a connection for as long as it lasts, and there are some for every namespace.
        configuration.connection_pool_maxsize = 0
        client = ApiClient(configuration=configuration)
    except (ConfigException, OSError, ValueError, YAMLError, LookupError, TypeError, AttributeError) as error:
        # A kubeconfig is read there without being checked: what is odd in it comes out as whatever breaks.
        broken = isinstance(error, (TypeError, AttributeError, LookupError, UnicodeError))
        said = f"this is no kubeconfig: {error}" if broken else str(error)
        raise ApiError(0, "NotConfigured", said or type(error).__name__) from error
    async with client:
        yield KubeApi(client)


def _look_at(kubeconfig: Path) -> None:
    """``ApiError`` for what is no kubeconfig at all: the client would say so in words of its own insides."""
    from yaml import safe_load  # noqa: PLC0415 - only where there is a cluster

    try:
        said = safe_load(kubeconfig.read_bytes())
    except OSError as error:
        raise ApiError(0, "NotConfigured", f"{kubeconfig}: {error.strerror or error}") from error
    if not isinstance(said, dict) or not said.get("clusters"):
        why = "it is empty" if said is None else "it names no clusters"
        raise ApiError(0, "NotConfigured", f"{kubeconfig}: this is no kubeconfig: {why}")
