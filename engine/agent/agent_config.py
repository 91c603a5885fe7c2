"""What can be said to ``switchgear-agent run``: one dataclass makes its file, its environment and its flags.

A flag outdoes the environment, which outdoes the file, which outdoes the default. Whatever is wrong with a value
is said in one ``AgentConfigError`` that names the place and what would work there; all of them come at once.
"""

import os
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from engine.address import ListenAddress
from engine.agent.config_error import AgentConfigError
from engine.gpu.gpu_policy import GpuPolicy
from engine.probe_settings import ProbeSettings
from engine.tls.paths import TlsFiles, TrustFiles

ENVIRONMENT_PREFIX: Final = "SWITCHGEAR_AGENT_"

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class EngineUrl:
    """Where the engine answers, and whether by TLS."""

    host: str
    port: int
    secure: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address in ``http://127.0.0.1:8000``."""
        parts = urlsplit(text)
        secure = parts.scheme == "https"
        try:
            port = parts.port or (443 if secure else 80)
        except ValueError as error:
            raise ValueError(f"{error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError("write http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:8000")
        return cls(parts.hostname, port, secure)

    def __str__(self) -> str:
        """The URL, without a path."""
        return f"http{'s' if self.secure else ''}://{ListenAddress(self.host, self.port)}"


def _about(text: str, least: float | None = None, most: float | None = None) -> Mapping[str, Any]:
    return {"help": text, "least": least, "most": most}


def _says(default: Any, text: str, *, least: float | None = None, most: float | None = None) -> Any:
    return field(default=default, metadata=_about(text, least, most))


def _time(default_s: float, text: str, *, least_s: float = 0.0, most_s: float = 86_400.0) -> Any:
    return _says(default_s, text, least=least_s, most=most_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of one agent; names that end in ``_s`` are durations, written like 250ms, 1s or 2m."""

    engine: EngineUrl = field(default=EngineUrl("127.0.0.1", 8000), metadata=_about("The engine's OpenAI API."))
    engine_ca: str = _says(
        "", "Authorities, PEM, that the certificate of an https engine must come from; read again when it changes."
    )
    engine_certificate: str = _says(
        "", "Certificate (chain), PEM, to show the engine; read again when it changes."
    )
    engine_key: str = _says("", "Its key, PEM, without a passphrase.")
    engine_server_name: str = _says(
        "", "Name to ask the engine for (SNI), which its certificate must have; its host when empty."
    )
    http: ListenAddress = field(
        default=ListenAddress("127.0.0.1", 18011), metadata=_about("Where probes, metrics and drain are answered.")
    )
    grpc: ListenAddress = field(
        default=ListenAddress("127.0.0.1", 18012), metadata=_about("Where control planes watch (gRPC).")
    )
    model: str = _says("", "Model to ask for; the first that the engine lists when empty.")
    slots: int = _says(0, "Requests the engine runs at once (--max-num-seqs); 0: unknown.", least=0, most=65536)
    api: Literal["/v1/completions", "/v1/chat/completions"] = _says(
        "/v1/completions", "API asked for one-token completions."
    )
    interval_s: float = _time(0.25, "Between two looks while requests are in flight.", least_s=0.05, most_s=60)
    idle_interval_s: float = _time(1.0, "Between two looks, and tokens, while idle.", least_s=0.05, most_s=60)
    timeout_s: float = _time(1.0, "What an idle engine may take for one token.", least_s=0.01, most_s=600)
    stall_after_s: float = _time(
        1.0, "How long no token may come while requests are in flight; above the longest step.", least_s=0.1
    )
    unhealthy_after: int = _says(2, "Soft bad readings in a row before they count.", least=1, most=100)
    healthy_after: int = _says(1, "Good readings in a row before an engine is ready again.", least=1, most=100)
    error_percent: float = _says(40.0, "Share of failed requests that counts as damage.", least=1, most=100)
    error_requests: int = _says(25, "Requests of the last 30 s before that share counts.", least=1, most=100_000)
    start_limit_s: float = _time(1800.0, "How long nobody may listen at first before the engine counts as dead.")
    warm_up: tuple[int, ...] = _says((), "Prompt lengths, in words, to run before ready: 128,2048.")
    warm_up_timeout_s: float = _time(60.0, "What one warm-up prompt may take.", least_s=0.1)
    restart_after_hung_s: float = _time(60.0, "How long hung before /livez asks for a restart; 0s: never.")
    restart_after_error_s: float = _time(5.0, "How long dead or in error before /livez asks for a restart.")
    drain_deadline_s: float = _time(30.0, "Deadline of a drain that names none, and of the one on SIGTERM.")
    remote_drain: bool = _says(False, "Whether other machines may drain this engine.")
    gpu: Literal["auto", "off"] = _says("auto", "Whether to read the GPUs through NVML.")
    gpu_devices: tuple[str, ...] = _says((), "NVML indexes or UUIDs of the engine's ranks; all GPUs when empty.")
    gpu_actions: tuple[str, ...] = _says((), "What signals lead to instead: xid.63=none,nvlink_down=drain.")
    gpu_dcgm: str = _says("", "A DCGM exporter to read instead of NVML: http://127.0.0.1:9400/metrics.")
    gpu_check_python: str = _says("", "Python with torch for the deep GPU check; no check when empty.")
    tls_cert: str = _says("", "Certificate (chain), PEM, of both ports; read again when it changes.")
    tls_key: str = _says("", "Its key, PEM, without a passphrase.")
    tls_ca: str = _says("", "Authorities, PEM, that certificates of control planes must come from.")
    allowed_clients: tuple[str, ...] = _says(
        (),
        "Identities (URI or DNS name; * but a slash) that may watch and drain; all when empty.",
    )
    insecure: bool = _says(False, "Whether other machines may connect in plain text, without --tls-cert.")
    log_format: Literal["text", "json"] = _says("text", "Form of the log on stderr.")

    @property
    def probe(self) -> ProbeSettings:
        """How the engine is asked."""
        return ProbeSettings(
            interval_s=self.interval_s,
            timeout_s=self.timeout_s,
            stall_after_s=self.stall_after_s,
            unhealthy_after=self.unhealthy_after,
            healthy_after=self.healthy_after,
            path=self.api,
            count_paths=("/switchgear/in_flight", "/load"),
            latency=True,
        )

    @property
    def tls(self) -> TlsFiles | None:
        """Where the certificate of both ports is; None for plain text."""
        if not self.tls_cert:
            return None
        return TlsFiles(certificate=Path(self.tls_cert), key=Path(self.tls_key), authorities=Path(self.tls_ca))

    @property
    def engine_trust(self) -> TrustFiles | None:
        """What to ask the engine by; None for plain HTTP."""
        if not self.engine.secure:
            return None
        proof = (Path(self.engine_certificate), Path(self.engine_key)) if self.engine_key else (None, None)
        return TrustFiles(authorities=Path(self.engine_ca), certificate=proof[0], key=proof[1])

    def check(self) -> None:
        """ConfigError for settings that each are well and together cannot work."""
        self._check_engine()
        said = {"--tls-cert": self.tls_cert, "--tls-key": self.tls_key, "--tls-ca": self.tls_ca}
        missing = [name for name, path in said.items() if not path]
        if 0 < len(missing) < len(said):
            raise AgentConfigError(
                f"{missing[0]} is missing: a certificate, its key and the authorities go together"
            )
        if missing and self.allowed_clients:
            raise AgentConfigError("--allowed-clients: without --tls-cert nobody proves who they are")
        if not missing and self.insecure:
            raise AgentConfigError("--insecure allows plain text, and --tls-cert leaves none: give one of them")
        for name, address in (("--http", self.http), ("--grpc", self.grpc)):
            if missing and not self.insecure and not address.is_loopback:
                raise AgentConfigError(
                    f"{name} {address} takes connections of other machines, in plain text and from anybody: give "
                    "--tls-cert, --tls-key and --tls-ca, or say --insecure"
                )

    def _check_engine(self) -> None:
        said = {
            "--engine-ca": self.engine_ca,
            "--engine-certificate": self.engine_certificate,
            "--engine-key": self.engine_key,
            "--engine-server-name": self.engine_server_name,
        }
        idle = [name for name, text in said.items() if text]
        if not self.engine.secure:
            if idle:
                raise AgentConfigError(
                    f"{idle[0]}: --engine is {self.engine}, which is not asked by TLS: write https://"
                )
            return
        if not self.engine_ca:
            raise AgentConfigError(
                f"--engine {self.engine}: name the authorities of its certificate with --engine-ca, such as "
                "/etc/ssl/certs/ca-certificates.crt for those that this machine trusts"
            )
        if bool(self.engine_certificate) is not bool(self.engine_key):
            missing = "--engine-key" if self.engine_certificate else "--engine-certificate"
            raise AgentConfigError(f"{missing} is missing: a certificate and its key go together")

    @property
    def gpu_policy(self) -> GpuPolicy:
        """What the signals of GPUs lead to; ValueError names what cannot be understood."""
        words: dict[str, str] = {}
        for said in self.gpu_actions:
            signal, _, action = said.partition("=")
            words[signal] = action
        return GpuPolicy().overridden(words)


def flag_name(setting: "Field[Any]") -> str:
    """The command line's name of a setting."""
    return f"--{setting.name.removesuffix('_s').replace('_', '-')}"


def environment_variable(setting: "Field[Any]") -> str:
    """The environment's name of a setting."""
    return ENVIRONMENT_PREFIX + setting.name.removesuffix("_s").upper()


def file_key(setting: "Field[Any]") -> str:
    """The file's name of a setting."""
    first, *more = setting.name.removesuffix("_s").split("_")
    return first + "".join(word.capitalize() for word in more)


def agent_config(
    flags: Mapping[str, str], *, environment: Mapping[str, str] = os.environ, file: Path | None = None
) -> AgentConfig:
    """The settings that flags (by field name), environment and file amount to; ConfigError with all faults."""
    settings = {setting.name: setting for setting in fields(AgentConfig)}
    said: dict[str, tuple[str, str]] = {}
    problems: list[str] = []
    if file is not None:
        from engine.agent.agent_config_file import file_settings  # noqa: PLC0415 -- a YAML parser is memory only some need

        by_key = {file_key(setting): name for name, setting in settings.items()}
        for found, place, text in file_settings(file):
            if found not in by_key:
                problems.append(f"{place}: {found} is no setting; there are {', '.join(sorted(by_key))}")
            else:
                said[by_key[found]] = (f"{place}: {found}", text)
    for name, setting in settings.items():
        if environment_variable(setting) in environment:
            said[name] = (environment_variable(setting), environment[environment_variable(setting)])
        if name in flags:
            said[name] = (flag_name(setting), flags[name])
    known = {environment_variable(setting) for setting in settings.values()} | {f"{ENVIRONMENT_PREFIX}CONFIG"}
    strange = (name for name in sorted(environment) if name.startswith(ENVIRONMENT_PREFIX) and name not in known)
    problems.extend(f"{name}: no setting has this name" for name in strange)
    hints = typing.get_type_hints(AgentConfig)
    values: dict[str, Any] = {}
    for name, (place, text) in said.items():
        try:
            values[name] = _value(settings[name], hints[name], text.strip())
        except ValueError as error:
            problems.append(f"{place}: {text!r}: {error}")
    if problems:
        raise AgentConfigError("\n".join(problems))
    config = AgentConfig(**values)
    config.check()
    try:
        _ = config.gpu_policy
    except ValueError as error:
        raise AgentConfigError(f"{said['gpu_actions'][0]}: {error}") from error
    return config


def format_default(setting: "Field[Any]") -> str:
    """The default as one would write it."""
    value = setting.default
    if value is MISSING or value in ("", ()):
        return "none"
    if setting.name.endswith("_s"):
        return f"{value * 1000:g}ms" if 0 < value < 1 else f"{value:g}s"
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_duration(text: str) -> float:
    """The duration written as 250ms, 1s, 2m or 1h; ValueError says how to write one."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("write a duration with its unit, such as 250ms, 1.5s or 2m")
    return float(found[1]) * _UNITS_S[found[2]]


def _value(setting: "Field[Any]", hint: Any, text: str) -> Any:
    value = _parsed(setting, hint, text)
    least, most = setting.metadata["least"], setting.metadata["most"]
    if isinstance(value, int | float) and not isinstance(value, bool):
        unit = "s" if setting.name.endswith("_s") else ""
        if not least <= value <= most:
            raise ValueError(f"must be {least:g}{unit} to {most:g}{unit}")
    return value


def _parsed(setting: "Field[Any]", hint: Any, text: str) -> Any:
    if setting.name.endswith("_s"):
        return parse_duration(text)
    if typing.get_origin(hint) is Literal:
        return _one_of(typing.get_args(hint), text)
    if typing.get_origin(hint) is tuple:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return tuple(_length(part) for part in parts) if int in typing.get_args(hint) else tuple(parts)
    return _PARSERS[hint](text)


def _one_of(allowed: tuple[str, ...], text: str) -> str:
    if text not in allowed:
        raise ValueError(f"must be one of {', '.join(allowed)}")
    return text


def _truth(text: str) -> bool:
    return _one_of(("true", "false"), text) == "true"


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("must be a whole number")
    return int(text)


def _length(text: str) -> int:
    length = _whole(text)
    if not 1 <= length <= 1_000_000:
        raise ValueError("prompt lengths are 1 to 1000000 words")
    return length


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError("must be a number") from error


_PARSERS: Final[Mapping[Any, Callable[[str], Any]]] = {
    EngineUrl: EngineUrl.parse,
    ListenAddress: ListenAddress.parse,
    bool: _truth,
    int: _whole,
    float: _number,
    str: str,
}
