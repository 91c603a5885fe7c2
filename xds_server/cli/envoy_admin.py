"""Configuration of an Envoy, from its admin interface or a saved dump."""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

import click

from xds_server.diagnosis.envoy_dump import (
    DumpedResource,
    DumpError,
    dumped_resources,
    node_attributes,
    node_of,
    runtime_layers,
)

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 256 * 1024 * 1024

_DUMP: Final = "/config_dump?include_eds"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyConfig:
    """An Envoy: node id, node attributes, resources, and by type why some are unknown."""

    node: str
    node_attributes: tuple[tuple[str, str], ...]
    found: tuple[DumpedResource, ...]
    unseen: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def config_of_envoy(url: str) -> EnvoyConfig:
    """The configuration of a live Envoy; ``click.ClickException`` if unavailable."""
    try:
        dump = _page(url, _DUMP)
        found = (*dumped_resources(dump), *runtime_layers(_page(url, "/runtime")))
        return EnvoyConfig(node=node_of(dump), node_attributes=node_attributes(dump), found=found)
    except DumpError as error:
        raise click.ClickException(f"{url}: {error}; is it the admin port of an Envoy?") from error


def config_of_file(path: Path) -> EnvoyConfig:
    """The same from a saved ``/config_dump?include_eds``, without the runtime. ``-`` reads stdin."""
    try:
        with click.open_file(str(path), encoding="utf-8") as file:
            dump = json.loads(file.read(MAX_BYTES))
        unseen = {"RTDS": "a config_dump has no runtime; use --envoy-admin"}
        found = dumped_resources(dump)
        if not any("EndpointsConfigDump" in str(one.get("@type")) for one in dump["configs"]):
            unseen["EDS"] = "the dump was made without ?include_eds"
        return EnvoyConfig(node=node_of(dump), node_attributes=node_attributes(dump), found=found, unseen=unseen)
    except RecursionError as error:
        raise click.UsageError(f"--envoy-dump {path}: nested too deeply for a dump of Envoy") from error
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--envoy-dump {path}: {error}") from error
    except DumpError as error:
        raise click.UsageError(f"--envoy-dump {path}: {error}") from error


def raw_dump(url: str) -> Any:
    """The whole dump as Envoy wrote it, with endpoints; ``click.ClickException`` if unavailable."""
    return _page(url, _DUMP)


def _page(url: str, path: str) -> Any:
    wrong = click.UsageError(f"--envoy-admin {url!r} is not an address such as http://127.0.0.1:9901")
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise wrong from error
    if parts.scheme != "http" or not host:
        raise wrong
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read(MAX_BYTES)
    except http.client.HTTPException as error:
        raise click.ClickException(f"{url} does not answer in HTTP: is it the admin port of an Envoy?") from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise click.ClickException(
            f"no Envoy answers at {url}: {reason}. Its admin port usually listens on loopback: run this there, or "
            f"save {_DUMP} to a file for --envoy-dump"
        ) from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise click.ClickException(f"{url}{path} answered {answer.status}: is it the admin port of an Envoy?")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{url}{path} is not JSON: is it the admin port of an Envoy?") from error
