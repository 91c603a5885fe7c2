"""``switchgear bug-report``: collect a redacted diagnostics bundle; the server may be down."""

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

from command_line.out_option import out_option
from policies.findings import PolicyErrors
from policies.model import PolicySet
from xds_server.admin.server_info import libraries
from xds_server.admin_api.endpoints import (
    CONDITIONS,
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
from xds_server.cli.policies_option import load_policies, policies_option
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
        "conditions": CONDITIONS,
    }
)


@dataclass(slots=True)
class _Bundle:
    """Redacted parts by name, and parts that could not be read."""

    parts: dict[str, bytes] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, text: str) -> None:
        content = text.encode("utf-8", "replace")
        if len(content) > MOST_PART_BYTES:
            self.cut.append(name)
            content = content[:MOST_PART_BYTES]
        if sum(map(len, self.parts.values())) + len(content) > MOST_BYTES:
            self.missing[name] = "bundle full"
            return
        self.parts[name] = content

    def put_data(self, name: str, value: Any) -> None:
        self.put(name, json.dumps(redaction.data(value), indent=1, ensure_ascii=False) + "\n")

    def try_data(self, name: str, make: Callable[[], Any]) -> Any:
        """Put what ``make`` returns, or note why it fails."""
        try:
            value = make()
        except click.ClickException as error:
            self.missing[name] = redaction.text(error.format_message())
            return None
        self.put_data(name, value)
        return value


@click.command(name="bug-report", short_help="Collect a redacted diagnostics bundle.")
@connection_options
@out_option("File to write; default: switchgear-report-DATE-TIME.tar.gz.")
@policies_option("Policy file or folder to include, redacted; repeatable.")
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="NODE",
    help="Include resources served to this proxy; repeatable.",
)
@click.option(
    "--envoy-admin",
    "envoys",
    multiple=True,
    metavar="URL",
    help="Include this Envoy's configuration; repeatable.",
)
def command(
    *,
    admin: str,
    out: Path | None,
    filename: tuple[Path, ...],
    proxies: tuple[str, ...],
    envoys: tuple[str, ...],
) -> int:
    """Collect a redacted diagnostics bundle.

    Writes a tar.gz of at most 64 MiB: state, events, metrics, served resources, versions and the checks of
    `switchgear doctor`. Tokens, passwords and values of headers, labels and annotations are removed. Engine names,
    addresses and zones stay: review it before you share it.

    Exit code: 0, 1 when parts are missing (they are named), 2 usage error or the file cannot be written.
    """
    target = out or Path(time.strftime("switchgear-report-%Y%m%d-%H%M%S.tar.gz"))
    if target.exists():
        raise click.UsageError(f"{target} exists; name a new file with --out")
    bundle = _Bundle()
    _server(bundle, admin, proxies)
    _surroundings(bundle, admin, filename)
    for number, url in enumerate(envoys):
        bundle.try_data(f"envoys/{number}.json", partial(raw_dump, url))
    if filename:
        _files(bundle, filename)
    _write(target, bundle)
    for name, why in bundle.missing.items():
        click.echo(f"missing: {name}: {why}", err=True)
    click.echo(f"{target}: {len(bundle.parts)} parts; review it before you share it")
    return 1 if bundle.missing else 0


def _server(bundle: _Bundle, admin: str, proxies: tuple[str, ...]) -> None:
    try:
        bundle.put_data("about.json", _document(admin, SERVER_INFO))
    except (NoAnswerError, AdminApiError) as error:
        # Each further request would time out as well.
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
    """The snapshot of each kind of proxy, without content."""
    served = {(one.zone, one.role) for one in fetch(admin, PROXIES).value.proxies}
    for zone, role in sorted(served)[:MOST_VIEWS]:
        if role in ("gateway", "sidecar"):
            yield _document(admin, SNAPSHOT, query=[("zone", zone), ("role", role)])


def _document(admin: str, endpoint: AdminEndpoint[Any], query: Sequence[tuple[str, str]] = ()) -> Any:
    """The answer as the server sent it, unvalidated: its oddities may be the fault."""
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
    # Names only: values may be secret.
    names = sorted(name for name in os.environ if name.startswith(("SWITCHGEAR_", "GRPC_", "KUBERNETES_")))
    bundle.put_data("here.json", {"libraries": dict(libraries()), "environment_has": names})


def _files(bundle: _Bundle, paths: tuple[Path, ...]) -> None:
    """Put the parsed policies; text that cannot be parsed cannot be redacted, and is left out."""
    try:
        found = load_policies(paths)
    except PolicyErrors as errors:
        diagnostics = from_errors(errors)
        bundle.missing["policies.yaml"] = f"{len(diagnostics)} errors, listed in policy-errors.json"
        bundle.put_data("policy-errors.json", [_without_text(dict(one.record())) for one in diagnostics])
        return
    documents = [redaction.data(one) for one in _documents(found)]
    bundle.put("policies.yaml", yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True))


def _without_text(diagnostic: dict[str, Any]) -> dict[str, Any]:
    """A diagnostic without its message, which may quote the file."""
    return {key: diagnostic[key] for key in ("level", "code", "file", "line", "column", "path")}


def _documents(found: PolicySet) -> Iterator[Any]:
    for by_name in (found.pools, found.routes, found.policies):
        for one in by_name.values():
            yield one.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _plain(name: str) -> str:
    """A node ID as a file name."""
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
        # Readable by this user only: it has no secrets, but names the fleet.
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        made = True
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            for name, content in {"manifest.json": manifest, **bundle.parts}.items():
                entry = tarfile.TarInfo(f"switchgear-report/{name}")
                entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
                tar.addfile(entry, io.BytesIO(content))
    except OSError as error:
        if made:  # half a bundle would block the next one
            target.unlink(missing_ok=True)
        raise click.UsageError(f"--out {target}: {error.strerror or error}") from error
