"""Settings of ``switchgear serve``: one dataclass defines flags, environment variables and defaults.

Each field carries its help text, the source of ``--help`` and the reference. An invalid value raises
``ConfigError``, and the server does not start.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from engine.address import ListenAddress
from engine.tls.paths import TlsFiles

ENVIRONMENT_PREFIX: Final = "SWITCHGEAR"

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL: Final = r"([-a-z0-9.]+/)?[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?"
_VALUE: Final = r"([A-Za-z0-9]([-\w.]*[A-Za-z0-9])?)?"
_REQUIREMENT: Final = re.compile(
    rf"!?\s*{_LABEL}|{_LABEL}\s*(==?|!=)\s*{_VALUE}|{_LABEL}\s+(in|notin)\s*\(\s*{_VALUE}(\s*,\s*{_VALUE})*\s*\)",
    re.ASCII,
)
"""A condition of a label selector. Source: Kubernetes, "Labels and Selectors"."""


class ConfigError(Exception):
    """Invalid settings; the message names the setting and the fix."""


def address_of(text: str) -> ListenAddress:
    """Parse HOST:PORT; raises ``ConfigError`` if invalid."""
    try:
        return ListenAddress.parse(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:18000") from error


def _says(text: str, flag: str = "", *, short: str = "", variable: str = "") -> dict[str, str]:
    """Field metadata with the help text; ``flag`` and ``variable`` override the names derived from the field."""
    return {"help": text, "flag": flag, "short": short, "variable": variable}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Settings of one server; durations in seconds."""

    policies: tuple[Path, ...] = field(
        default=(),
        metadata=_says(
            "Policy file or folder; repeatable.  [this or --kubernetes]",
            flag="filename",
            short="-f",
            variable="policies",
        ),
    )
    kubernetes: bool = field(
        default=False,
        metadata=_says("Read policies and their engines from a Kubernetes cluster."),
    )
    kubeconfig: Path | None = field(
        default=None,
        metadata=_says("Kubeconfig file of the cluster; default: the service account of this pod."),
    )
    context: str = field(
        default="", metadata=_says("Context of the kubeconfig; default: its current context.", flag="kube-context")
    )
    namespaces: tuple[str, ...] = field(
        default=(),
        metadata=_says("Namespace to read from; repeatable; default: all namespaces.", flag="namespace"),
    )
    selector: str = field(
        default="", metadata=_says("Only read policy objects with these labels, e.g. `fleet=east`.")
    )
    lease: str = field(
        default="",
        metadata=_says(
            "Lease (NAMESPACE/NAME) that elects the replica that writes to the cluster; equal on all "
            "replicas. Default: `switchgear` in this pod's namespace, or in `default`."
        ),
    )
    identity: str = field(
        default="",
        metadata=_says("Unique name of this replica; default: the host name (in a pod: the pod name)."),
    )
    write_status: bool = field(
        default=True,
        metadata=_says(
            "Write status, events and readiness gates to the cluster while this replica is the leader."
        ),
    )
    listen: ListenAddress = field(
        default=ListenAddress("127.0.0.1", 18000), metadata=_says("Address for Envoys (xDS over gRPC).")
    )
    transport: Literal["grpc", "h2"] = field(
        default="grpc",
        metadata=_says(
            "gRPC server of the xDS port: `grpc` (the gRPC library), or `h2` (our own, experimental: less CPU and "
            "memory for each proxy)."
        ),
    )
    admin: ListenAddress = field(
        default=ListenAddress("127.0.0.1", 18001),
        metadata=_says("Address for health, metrics and status (HTTP)."),
    )
    summary: ListenAddress | None = field(
        default=None,
        metadata=_says(
            "Address for control planes of other regions, which read pool summaries (gRPC).  [with --region]"
        ),
    )
    region: str = field(default="", metadata=_says("Region of this control plane; --summary reports its engines."))
    state_dir: Path | None = field(
        default=None,
        metadata=_says(
            "Folder that stores the last good policies, used at start when the policies are unreadable."
        ),
    )
    ledger: Path | None = field(
        default=None,
        metadata=_says("Append every state change to this file; read again at the next start."),
    )
    record: Path | None = field(
        default=None,
        metadata=_says("Record decision inputs to this file, for `switchgear replay`."),
    )
    allow_shrink: bool = field(
        default=False,
        metadata=_says("Also publish policies that remove more than half of the resources or engines at once."),
    )
    tls_cert: Path | None = field(
        default=None,
        metadata=_says(
            "Server certificate (chain), PEM, for all ports and for connections to agents; reloaded when "
            "it changes.  [with --tls-key and --tls-ca]"
        ),
    )
    tls_key: Path | None = field(
        default=None, metadata=_says("Private key of --tls-cert, PEM, without a passphrase.")
    )
    tls_ca: Path | None = field(
        default=None, metadata=_says("CA bundle, PEM, that verifies the certificates of all peers.")
    )
    access: Path | None = field(
        default=None,
        metadata=_says("File (kind Access) with the rights of proxies and admin users; reloaded when it changes."),
    )
    secrets: Path | None = field(
        default=None,
        metadata=_says(
            "Folder with the certificates that pools name (spec.tls.secret): NAME/ca.crt, NAME/tls.crt "
            "and NAME/tls.key; reloaded when they change."
        ),
    )
    agent_name: str = field(
        default="",
        metadata=_says(
            "DNS name required in agent certificates; default: the address dialled.  [with --tls-cert]"
        ),
    )
    plaintext_agents: tuple[str, ...] = field(
        default=(),
        metadata=_says("Pool whose agents still use plaintext during a migration to TLS; repeatable."),
    )
    open_metrics: bool = field(
        default=False,
        metadata=_says("Serve /metrics on the admin port without authentication.  [with --access or --tls-cert]"),
    )
    trust_loopback: bool = field(
        default=False,
        metadata=_says(
            "Accept operator orders and policy changes on a loopback admin port without a client certificate, for "
            "labs.  [with --tls-cert]"
        ),
    )
    insecure: bool = field(
        default=False,
        metadata=_says("Accept unauthenticated plaintext connections from other machines, without --tls-cert."),
    )
    otlp: str = field(
        default="",
        metadata=_says(
            "URL of an OpenTelemetry collector (OTLP over HTTP) for traces of decisions and pushes, e.g. "
            "http://127.0.0.1:4318; headers and certificates by OTEL_EXPORTER_OTLP_*.  [switchgear[otel]]"
        ),
    )
    log_format: Literal["text", "json"] = field(default="text", metadata=_says("Log format on stderr."))
    log_level: Literal["debug", "info", "warning", "error"] = field(
        default="info", metadata=_says("Minimum log level.")
    )
    settle_s: float = field(
        default=0.1, metadata=_says("Quiet time after a policy file change before it is read.")
    )
    poll_s: float = field(
        default=2.0,
        metadata=_says("Interval of comparing policy files, even without a change notification."),
    )
    resolve_s: float = field(default=10.0, metadata=_says("Interval of resolving engine host names."))
    first_reports_s: float = field(
        default=3.0,
        metadata=_says("Maximum wait at start for a first verdict on every engine before the xDS port opens."),
    )

    def __post_init__(self) -> None:
        """Reject invalid combinations."""
        self._check_source()
        self._check_tls()
        self._check_otlp()
        if self.summary is not None and not self.region:
            raise ConfigError("--summary reports the engines of one region: set --region")
        for flag, seconds in (("--settle", self.settle_s), ("--first-reports", self.first_reports_s)):
            if not 0 <= seconds <= 3600:
                raise ConfigError(f"{flag} must be between 0s and 1h")
        for flag, seconds in (("--poll", self.poll_s), ("--resolve", self.resolve_s)):
            if not 0.05 <= seconds <= 3600:
                raise ConfigError(f"{flag} must be between 50ms and 1h")
        if self.state_dir is not None and self.state_dir.exists() and not self.state_dir.is_dir():
            raise ConfigError(f"--state-dir {self.state_dir} is not a folder")
        if self.secrets is not None and not self.secrets.is_dir():
            raise ConfigError(f"--secrets {self.secrets} is not a folder")

    @property
    def tls(self) -> TlsFiles | None:
        """Files of the server certificate; None for plaintext."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return TlsFiles(certificate=self.tls_cert, key=self.tls_key, authorities=self.tls_ca)

    def _check_otlp(self) -> None:
        try:
            parts = urlsplit(self.otlp)
            usable = not self.otlp or bool(
                parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            )
        except ValueError:
            usable = False
        if not usable or not self.otlp.isprintable() or " " in self.otlp:
            raise ConfigError(f"--otlp is {self.otlp!r}; expected a URL, e.g. http://127.0.0.1:4318")
        if parts.username or parts.password or parts.query or parts.fragment:
            # Command lines are visible in process lists.
            raise ConfigError(
                "--otlp must not contain a user, password or query: pass secrets in OTEL_EXPORTER_OTLP_HEADERS"
            )

    def _check_tls(self) -> None:
        files = {"--tls-cert": self.tls_cert, "--tls-key": self.tls_key, "--tls-ca": self.tls_ca}
        missing = [flag for flag, path in files.items() if path is None]
        if 0 < len(missing) < len(files):
            raise ConfigError(f"{missing[0]} is missing: --tls-cert, --tls-key and --tls-ca are required together")
        secure = not missing
        if secure and self.insecure:
            raise ConfigError("--insecure allows plaintext, --tls-cert forbids it: remove one of them")
        if not secure and (self.agent_name or self.plaintext_agents):
            flag = "--agent-name" if self.agent_name else "--plaintext-agents"
            raise ConfigError(f"{flag} requires --tls-cert")
        if self.trust_loopback and not secure:
            raise ConfigError("--trust-loopback requires --tls-cert: without it loopback is open anyway")
        if self.trust_loopback and self.access is not None:
            raise ConfigError("--trust-loopback and --access exclude each other: remove one of them")
        if self.open_metrics and not secure and self.access is None:
            raise ConfigError("--open-metrics requires --access or --tls-cert")
        for flag, address in (("--listen", self.listen), ("--admin", self.admin), ("--summary", self.summary)):
            if address is not None and not address.is_loopback and not secure and not self.insecure:
                raise ConfigError(
                    f"{flag} {address} accepts unauthenticated plaintext connections from other machines: set "
                    "--tls-cert, --tls-key and --tls-ca, or --insecure"
                )

    def _check_source(self) -> None:
        if self.policies and self.kubernetes:
            raise ConfigError("-f and --kubernetes exclude each other: remove one of them")
        if not (self.policies or self.kubernetes):
            raise ConfigError("no policies: set -f FILE|DIR or --kubernetes")
        if Path("-") in self.policies:
            raise ConfigError("-f - reads stdin, which serve cannot watch: write the policies to a file or folder")
        given = {
            "--kubeconfig": self.kubeconfig is not None,
            "--kube-context": self.context,
            "--namespace": self.namespaces,
            "--selector": self.selector,
            "--lease": self.lease,
            "--identity": self.identity,
            "--no-write-status": not self.write_status,
        }
        idle = [flag for flag, is_set in given.items() if is_set]
        if idle and not self.kubernetes:
            raise ConfigError(f"{idle[0]} requires --kubernetes")
        if self.lease:
            namespace, slash, name = self.lease.partition("/")
            if not (namespace and slash and name) or "/" in name:
                raise ConfigError(f"--lease is {self.lease!r}; expected NAMESPACE/NAME, e.g. default/switchgear")
        if "" in self.namespaces:
            raise ConfigError("--namespace is empty; omit it to read from all namespaces")
        for name in self.namespaces:
            if not _NAMESPACE.fullmatch(name):
                raise ConfigError(
                    f"--namespace {name!r} is invalid: use lower-case letters, digits and dashes, at most 63"
                )
        for part in re.split(r",(?![^(]*\))", self.selector) if self.selector else ():
            if not _REQUIREMENT.fullmatch(part.strip()):
                raise ConfigError(
                    f"--selector has {part.strip()!r}; use LABEL=VALUE, LABEL!=VALUE, LABEL, !LABEL, LABEL in (A, "
                    "B) or LABEL notin (A, B), separated by commas"
                )
