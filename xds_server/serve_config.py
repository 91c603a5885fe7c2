"""What the operator can say about one ``switchgear serve``: one dataclass makes flags, environment and defaults.

Each field carries its help text, so that ``--help`` and the reference documentation cannot drift from the
code. What is wrong with a value is said once, here, as a ``ConfigError``; the server then refuses to start.
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
"""One of the conditions of a label selector. Source: Kubernetes, "Labels and Selectors"."""


class ConfigError(Exception):
    """The operator's settings cannot work; the message says which and what to do."""


def address_of(text: str) -> ListenAddress:
    """The address in these words; ``ConfigError`` where they are none."""
    try:
        return ListenAddress.parse(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:18000") from error


def _says(text: str, flag: str = "") -> dict[str, str]:
    """How a setting is described; ``flag`` names its option where the field's own name would read badly."""
    return {"help": text, "flag": flag}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Settings of one server; times in seconds."""

    policies: tuple[Path, ...] = field(
        default=(),
        metadata=_says("Folder or file with policies; may be given more than once.  [this or --kubernetes]"),
    )
    kubernetes: bool = field(
        default=False,
        metadata=_says("Read policies, and the engines that they name, from a Kubernetes cluster."),
    )
    kubeconfig: Path | None = field(
        default=None,
        metadata=_says("Kubeconfig file to reach the cluster by; absent, the service account of this pod."),
    )
    context: str = field(default="", metadata=_says("Context of the kubeconfig; absent, its current one."))
    namespaces: tuple[str, ...] = field(
        default=(),
        metadata=_says(
            "Namespace to read from; may be given more than once; absent, all of them.", flag="namespace"
        ),
    )
    selector: str = field(
        default="", metadata=_says("Labels that policy objects must have to be read, such as `fleet=east`.")
    )
    lease: str = field(
        default="",
        metadata=_says(
            "Lease (NAMESPACE/NAME) that says which replica writes to the cluster; replicas that serve the same "
            "name the same. Absent, `switchgear` in the namespace of this pod, or in `default`."
        ),
    )
    identity: str = field(
        default="",
        metadata=_says("Name of this replica among the others; absent, the host name, which in a pod is its own."),
    )
    write_status: bool = field(
        default=True,
        metadata=_says("Write status, events and readiness gates to the cluster, while this replica may."),
    )
    listen: ListenAddress = field(
        default=ListenAddress("127.0.0.1", 18000), metadata=_says("Where Envoys connect (xDS over gRPC).")
    )
    admin: ListenAddress = field(
        default=ListenAddress("127.0.0.1", 18001),
        metadata=_says("Where health, metrics and status are served (HTTP)."),
    )
    summary: ListenAddress | None = field(
        default=None,
        metadata=_says(
            "Where control planes of other regions hear how the pools here are (gRPC).  [with --region]"
        ),
    )
    region: str = field(
        default="", metadata=_says("Region of this control plane; --summary tells of its engines.")
    )
    state_dir: Path | None = field(
        default=None,
        metadata=_says("Folder that keeps the last good policies, to start from when the files are unreadable."),
    )
    ledger: Path | None = field(
        default=None,
        metadata=_says("File every change of state is appended to; read again at the next start."),
    )
    record: Path | None = field(
        default=None,
        metadata=_says("File that what decisions are made of is written to, for `switchgear replay`."),
    )
    allow_shrink: bool = field(
        default=False,
        metadata=_says("Publish also what drops more than half of the resources and engines at once."),
    )
    tls_cert: Path | None = field(
        default=None,
        metadata=_says(
            "Certificate (chain) of this server, PEM, on all of its ports and towards agents; read again when it "
            "changes.  [with --tls-key and --tls-ca]"
        ),
    )
    tls_key: Path | None = field(default=None, metadata=_says("Its key, PEM, without a passphrase."))
    tls_ca: Path | None = field(
        default=None, metadata=_says("Authorities, PEM, that certificates of all others must come from.")
    )
    access: Path | None = field(
        default=None,
        metadata=_says(
            "File (kind Access) that says which proxies may be and see what, and who may use the admin port; read "
            "again when it changes."
        ),
    )
    secrets: Path | None = field(
        default=None,
        metadata=_says(
            "Folder with the certificates that pools name (spec.tls.secret): NAME/ca.crt, NAME/tls.crt and "
            "NAME/tls.key; read again when they change."
        ),
    )
    agent_name: str = field(
        default="",
        metadata=_says(
            "DNS name that certificates of agents must prove; absent, the address they are dialled at.  "
            "[with --tls-cert]"
        ),
    )
    plaintext_agents: tuple[str, ...] = field(
        default=(),
        metadata=_says(
            "Pool whose agents still speak plain text, while a fleet moves to TLS; may be given more than once."
        ),
    )
    open_metrics: bool = field(
        default=False,
        metadata=_says("Let anybody read /metrics of the admin port.  [with --access or --tls-cert]"),
    )
    insecure: bool = field(
        default=False,
        metadata=_says("Take connections of other machines in plain text and from anybody, without --tls-cert."),
    )
    otlp: str = field(
        default="",
        metadata=_says(
            "URL of an OpenTelemetry collector (OTLP over HTTP), such as http://127.0.0.1:4318, that traces of "
            "decisions and pushes go to; headers and certificates by OTEL_EXPORTER_OTLP_*.  [switchgear[otel]]"
        ),
    )
    log_format: Literal["text", "json"] = field(default="text", metadata=_says("Form of the log on stderr."))
    log_level: Literal["debug", "info", "warning", "error"] = field(
        default="info", metadata=_says("Least important line logged.")
    )
    settle_s: float = field(
        default=0.1, metadata=_says("How long policy files must be left alone before they are read.")
    )
    poll_s: float = field(
        default=2.0,
        metadata=_says("How often policy files are compared even if no change was announced."),
    )
    resolve_s: float = field(default=10.0, metadata=_says("How often host names of engines are looked up again."))
    first_reports_s: float = field(
        default=3.0,
        metadata=_says("Longest wait at start for a first verdict on every engine, before the xDS port opens."),
    )

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        self._check_source()
        self._check_tls()
        self._check_otlp()
        if self.summary is not None and not self.region:
            raise ConfigError("--summary tells of the engines of one region: name it with --region")
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
        """Where the certificate of this server is; None for plain text."""
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
            raise ConfigError(f"--otlp is {self.otlp!r}; write a URL, such as http://127.0.0.1:4318")
        if parts.username or parts.password or parts.query or parts.fragment:
            # What stands on a command line is in the list of processes.
            raise ConfigError(
                "--otlp takes no user, password or query: give secrets as OTEL_EXPORTER_OTLP_HEADERS"
            )

    def _check_tls(self) -> None:
        files = {"--tls-cert": self.tls_cert, "--tls-key": self.tls_key, "--tls-ca": self.tls_ca}
        missing = [flag for flag, path in files.items() if path is None]
        if 0 < len(missing) < len(files):
            raise ConfigError(f"{missing[0]} is missing: a certificate, its key and the authorities go together")
        secure = not missing
        if secure and self.insecure:
            raise ConfigError("--insecure allows plain text, and --tls-cert leaves none: give one of them")
        if not secure and (self.agent_name or self.plaintext_agents):
            flag = "--agent-name" if self.agent_name else "--plaintext-agents"
            raise ConfigError(f"{flag} says something about TLS, and --tls-cert is not given")
        if self.open_metrics and not secure and self.access is None:
            raise ConfigError("--open-metrics opens what nothing closes: it goes with --access or --tls-cert")
        for flag, address in (("--listen", self.listen), ("--admin", self.admin), ("--summary", self.summary)):
            if address is not None and not address.is_loopback and not secure and not self.insecure:
                raise ConfigError(
                    f"{flag} {address} takes connections of other machines, in plain text and from anybody: give "
                    "--tls-cert, --tls-key and --tls-ca, or say --insecure"
                )

    def _check_source(self) -> None:
        if self.policies and self.kubernetes:
            raise ConfigError(
                "policies come from files or from the cluster: give --policies or --kubernetes, not both"
            )
        if not (self.policies or self.kubernetes):
            raise ConfigError("name at least one folder or file with --policies, or give --kubernetes")
        given = {
            "--kubeconfig": self.kubeconfig is not None,
            "--context": self.context,
            "--namespace": self.namespaces,
            "--selector": self.selector,
            "--lease": self.lease,
            "--identity": self.identity,
            "--no-write-status": not self.write_status,
        }
        idle = [flag for flag, said in given.items() if said]
        if idle and not self.kubernetes:
            raise ConfigError(f"{idle[0]} says something about a cluster, and --kubernetes is not given")
        if self.lease:
            namespace, slash, name = self.lease.partition("/")
            if not (namespace and slash and name) or "/" in name:
                raise ConfigError(f"--lease is {self.lease!r}; write NAMESPACE/NAME, such as default/switchgear")
        if "" in self.namespaces:
            raise ConfigError("--namespace is empty; leave it out to read from all of them")
        for name in self.namespaces:
            if not _NAMESPACE.fullmatch(name):
                raise ConfigError(
                    f"--namespace is {name!r}; a namespace has lower-case letters, digits and dashes, at most 63"
                )
        for part in re.split(r",(?![^(]*\))", self.selector) if self.selector else ():
            if not _REQUIREMENT.fullmatch(part.strip()):
                raise ConfigError(
                    f"--selector has {part.strip()!r}; write LABEL=VALUE, LABEL!=VALUE, LABEL, !LABEL, "
                    "LABEL in (A, B) or LABEL notin (A, B), with commas between them"
                )
