"""Address and credentials of the API server, from a kubeconfig or the pod's service account."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from xds_server.k8s.kube_api import ApiError, KubeApi


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Access to the API server: a kubeconfig and its context, or the service account when both are absent."""

    kubeconfig: Path | None = None
    context: str = ""


@asynccontextmanager
async def open_kube_api(access: ClientConfig) -> AsyncIterator[KubeApi]:
    """Open a connection; ``ApiError`` with status 0 without usable configuration."""
    # Imported lazily: it takes a second and is unused without a cluster.
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
        # Callers decide about retries themselves.
        configuration.retries = None  # 0 retries forever: aiohttp_retry counts up to it from one
        # Each watch holds a connection, with several watches per namespace.
        configuration.connection_pool_maxsize = 0
        client = ApiClient(configuration=configuration)
    except (ConfigException, OSError, ValueError, YAMLError, LookupError, TypeError, AttributeError) as error:
        # The library does not validate a kubeconfig; invalid content raises arbitrary exceptions.
        broken = isinstance(error, (TypeError, AttributeError, LookupError, UnicodeError))
        message = f"invalid kubeconfig: {error}" if broken else str(error)
        raise ApiError(0, "NotConfigured", message or type(error).__name__) from error
    async with client:
        yield KubeApi(client)


def _look_at(kubeconfig: Path) -> None:
    """Raise ``ApiError`` for a file that is not a kubeconfig; the library's own errors are unclear."""
    from yaml import safe_load  # noqa: PLC0415 - only where there is a cluster

    try:
        content = safe_load(kubeconfig.read_bytes())
    except OSError as error:
        raise ApiError(0, "NotConfigured", f"{kubeconfig}: {error.strerror or error}") from error
    if not isinstance(content, dict) or not content.get("clusters"):
        why = "it is empty" if content is None else "it names no clusters"
        raise ApiError(0, "NotConfigured", f"{kubeconfig} is not a kubeconfig: {why}")
