"""``switchgear bug-report``: a bundle for whoever looks at a fault, without secrets; the server may be down."""

import http.client
import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click
import yaml

from policies.findings import PolicyErrors
from policies.load import load
from policies.model import PolicySet
from xds_server.admin.server_info import libraries
from xds_server.admin_api.endpoints import (
    ENGINES,
    EVENTS,
    ORDERS,
    POLICIES,
    POOLS,
    PROBLEMS,
    PROXIES,
    RESOURCES,
    SERVER_INFO,
    SHADOW,
    SNAPSHOT,
    ZONES,
    AdminEndpoint,
)
from xds_server.cli.admin_client import (
    AdminApiError,
    NoAnswerError,
    admin_connection,
    fetch,
    request_json,
)
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import from_errors
from xds_server.cli.doctor_checks import all_checks
from xds_server.cli.envoy_admin import raw_dump
from xds_server.diagnosis import redaction

MOST_PART_BYTES: Final = 8 * 1024 * 1024
MOST_BYTES: Final = 64 * 1024 * 1024
MOST_EVENTS: Final = 2_000
MOST_VIEWS: Final = 20

_STATE: Final[Mapping[str, AdminEndpoint[Any]]] = MappingProxyType(
    {
        "proxies": PROXIES,
        "policies": POLICIES,
        "engines": ENGINES,
        "pools": POOLS,
        "zones": ZONES,
        "orders": ORDERS,
        "shadow": SHADOW,
        "troubles": PROBLEMS,
    }
)


@dataclass(slots=True)
class _Bundle:
    """Parts by name, already without secrets, and what could not be had."""

    parts: dict[str, bytes] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, said: str) -> None:
        content = said.encode("utf-8", "replace")
        if len(content) > MOST_PART_BYTES:
            self.cut.append(name)
            content = content[:MOST_PART_BYTES]
        if sum(map(len, self.parts.values())) + len(content) > MOST_BYTES:
            self.missing[name] = "the bundle is full"
            return
        self.parts[name] = content

    def put_data(self, name: str, said: Any) -> None:
        self.put(name, json.dumps(redaction.data(said), indent=1, ensure_ascii=False) + "\n")

    def try_data(self, name: str, make: Callable[[], Any]) -> Any:
        """Put what ``make`` returns, or note why it cannot be had."""
        try:
            said = make()
        except click.ClickException as error:
            self.missing[name] = redaction.text(error.format_message())
            return None
        self.put_data(name, said)
        return said


@click.command(name="bug-report", short_help="Pack what somebody else needs to look at a fault, without secrets.")
@connection_options
@click.option(
    "-o",
    "--file",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to; a new file here, named by the time, when absent.",
)
@click.option(
    "--policies",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Policy files to put in, without values of headers and labels; may be given more than once.",
)
@click.option(
    "--proxy", "proxies", multiple=True, metavar="NODE", help="Also what this proxy is served; repeatable."
)
@click.option(
    "--envoy-admin", "envoys", multiple=True, metavar="URL", help="Also what this Envoy has; may be repeated."
)
def command(
    *,
    admin: str,
    path: Path | None,
    policies: tuple[Path, ...],
    proxies: tuple[str, ...],
    envoys: tuple[str, ...],
) -> int:
    """Write a tar.gz: state, events, metrics, what is served to whom, versions, what doctor says; 64 MiB at most.

    Tokens, passwords, and values of headers, labels and annotations are taken out. Names of engines, addresses and
    zones stay. Look through it before you hand it on.

    Exit code: 0, 1 when something could not be had (it is named, and the rest is written), 2 when asked wrongly or
    the file cannot be written.
    """
    target = path or Path(time.strftime("switchgear-report-%Y%m%d-%H%M%S.tar.gz"))
    if target.exists():
        raise click.UsageError(f"{target} exists; name a new file with -o")
    bundle = _Bundle()
    _server(bundle, admin, proxies)
    _surroundings(bundle, admin, policies)
    for number, url in enumerate(envoys):
        bundle.try_data(f"envoys/{number}.json", partial(raw_dump, url))
    if policies:
        _files(bundle, policies)
    _write(target, bundle)
    for name, why in bundle.missing.items():
        click.echo(f"missing: {name}: {why}", err=True)
    click.echo(f"{target}: {len(bundle.parts)} parts; look through it before you hand it on")
    return 1 if bundle.missing else 0


def _server(bundle: _Bundle, admin: str, proxies: tuple[str, ...]) -> None:
    try:
        bundle.put_data("about.json", _document(admin, SERVER_INFO))
    except (NoAnswerError, AdminApiError) as error:
        # Each further question would wait as long for the same answer.
        bundle.missing["server"] = redaction.text(error.format_message())
        return
    for name, endpoint in _STATE.items():
        bundle.try_data(f"state/{name}.json", partial(_document, admin, endpoint))
    bundle.try_data("events.json", lambda: {"events": fetch(admin, EVENTS).document["events"][-MOST_EVENTS:]})
    try:
        bundle.put("metrics.txt", redaction.text(_metrics(admin)))
    except (OSError, http.client.HTTPException, click.ClickException) as error:
        bundle.missing["metrics.txt"] = redaction.text(str(error))
    bundle.try_data("snapshots.json", lambda: list(_snapshots(admin)))
    for node in proxies:
        bundle.try_data(
            f"served/{_plain(node)}.json",
            partial(_document, admin, RESOURCES, query=[("node", node)]),
        )


def _snapshots(admin: str) -> Iterator[Any]:
    """What is served to each kind of proxy, without content."""
    served = {(one.zone, one.role) for one in fetch(admin, PROXIES).value.proxies}
    for zone, role in sorted(served)[:MOST_VIEWS]:
        if role in ("gateway", "sidecar"):
            yield _document(admin, SNAPSHOT, query=[("zone", zone), ("role", role)])


def _document(admin: str, endpoint: AdminEndpoint[Any], query: Sequence[tuple[str, str]] = ()) -> Any:
    """The answer as the server sent it, of whatever type: what is odd about it may be the fault."""
    return request_json(admin, endpoint.url(query=query))


def _metrics(admin: str) -> str:
    connection, headers = admin_connection(admin)
    try:
        connection.request("GET", "/metrics", None, headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise click.ClickException(f"/metrics answered {answer.status}")
        return answer.read(2 * MOST_PART_BYTES).decode("utf-8", "replace")
    finally:
        connection.close()


def _surroundings(bundle: _Bundle, admin: str, policies: tuple[Path, ...]) -> None:
    bundle.try_data(
        "doctor.json",
        lambda: [
            dict(one.record()) for one in all_checks(admin, xds="", envoys=(), policies=policies, cluster=None)
        ],
    )
    # Names only: the value of a variable may be anything.
    names = sorted(name for name in os.environ if name.startswith(("SWITCHGEAR_", "GRPC_", "KUBERNETES_")))
    bundle.put_data("here.json", {"libraries": dict(libraries()), "environment_has": names})


def _files(bundle: _Bundle, paths: tuple[Path, ...]) -> None:
    """Policies as they were understood: what nobody understands cannot be freed of secrets, and stays out."""
    try:
        found = load(paths)
    except PolicyErrors as errors:
        complaints = from_errors(errors)
        bundle.missing["policies.yaml"] = f"{len(complaints)} errors: they are in policy-errors.json"
        bundle.put_data("policy-errors.json", [_without_text(dict(one.record())) for one in complaints])
        return
    documents = [redaction.data(one) for one in _documents(found)]
    bundle.put("policies.yaml", yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True))


def _without_text(complaint: dict[str, Any]) -> dict[str, Any]:
    """A complaint without what stands in the file; its message may quote that."""
    return {key: complaint[key] for key in ("level", "code", "file", "line", "column", "path")}


def _documents(found: PolicySet) -> Iterator[Any]:
    for by_name in (found.pools, found.routes, found.policies):
        for one in by_name.values():
            yield one.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _plain(name: str) -> str:
    """A node id as the name of a file."""
    return "".join(one if one.isalnum() or one in "-_." else "_" for one in name).lstrip(".") or "proxy"


def _write(target: Path, bundle: _Bundle) -> None:
    about = {
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "parts": {name: len(content) for name, content in bundle.parts.items()},
        "cut": bundle.cut,
        "missing": bundle.missing,
    }
    manifest = json.dumps(about, indent=1, ensure_ascii=False).encode("utf-8", "replace")
    made = False
    try:
        # Nobody else's to read: it has no secrets, and yet says a lot.
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        made = True
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            for name, content in {"manifest.json": manifest, **bundle.parts}.items():
                entry = tarfile.TarInfo(f"switchgear-report/{name}")
                entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
                tar.addfile(entry, io.BytesIO(content))
    except OSError as error:
        if made:  # half a bundle looks like one, and would be in the way of the next
            target.unlink(missing_ok=True)
        raise click.UsageError(f"{target} cannot be written: {error.strerror or error}") from error
