"""Settings of ``switchgear-agent run``: one dataclass defines file keys, environment variables and flags.

Precedence: flag, environment, file, default. One ``AgentConfigError`` names every invalid value with its location
and the allowed values.
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
    """Address of an engine or agent, and whether it uses TLS."""

    host: str
    port: int
    secure: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``http://127.0.0.1:8000``; ValueError otherwise."""
        parts = urlsplit(text)
        secure = parts.scheme == "https"
        try:
            port = parts.port or (443 if secure else 80)
        except ValueError as error:
            raise ValueError(f"{error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError("write http://HOST:PORT or https://HOST:PORT, e.g. http://127.0.0.1:8000")
        return cls(parts.hostname, port, secure)

    def __str__(self) -> str:
        """The URL, without a path."""
        return f"http{'s' if self.secure else ''}://{ListenAddress(self.host, self.port)}"


def _metadata(
    text: str, least: float | None = None, most: float | None = None, absent: str = "none"
) -> Mapping[str, Any]:
    """``absent``: what applies without a value, for the help."""
    return {"help": text, "least": least, "most": most, "absent": absent}


def _setting(default: Any, text: str, *, least: float | None = None, most: float | None = None) -> Any:
    return field(default=default, metadata=_metadata(text, least, most))


def _time(default_s: float, text: str, *, least_s: float = 0.0, most_s: float = 86_400.0) -> Any:
    return _setting(default_s, text, least=least_s, most=most_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of one agent; names that end in ``_s`` are durations, written as 250ms, 1s or 2m."""

    engine: EngineUrl = field(
        default=EngineUrl("127.0.0.1", 8000), metadata=_metadata("URL of the engine's OpenAI API.")
    )
    engine_ca: str = _setting("", "CA bundle, PEM, that verifies an https engine; reloaded when it changes.")
    engine_certificate: str = _setting(
        "", "Client certificate (chain), PEM, for the engine; reloaded when it changes."
    )
    engine_key: str = _setting("", "Key of that certificate, PEM, without a passphrase.")
    engine_server_name: str = _setting(
        "", "DNS name (SNI) that the engine's certificate must prove; the URL's host when empty."
    )
    engine_api_key_file: str = _setting(
        "", "File with the engine's API key (vLLM --api-key), for probes; reloaded when it changes."
    )
    http: ListenAddress = field(
        default=ListenAddress("127.0.0.1", 18011), metadata=_metadata("Address for probes, metrics and drain.")
    )
    grpc: ListenAddress = field(
        default=ListenAddress("127.0.0.1", 18012), metadata=_metadata("Address for control planes (gRPC).")
    )
    model: str = _setting("", "Model of the probes; the first that the engine lists when empty.")
    slots: int = _setting(
        0, "Concurrent requests of the engine (--max-num-seqs); 0: unknown.", least=0, most=65536
    )
    api: Literal[
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/embeddings",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
    ] = _setting(
        "/v1/completions",
        "API path of the probes: one token, or one short text or sound for pooling and speech engines.",
    )
    interval_s: float = _time(0.25, "Probe interval while requests are in flight.", least_s=0.05, most_s=60)
    idle_interval_s: float = _time(
        1.0, "Probe interval, and interval of one-token probes, while idle.", least_s=0.05, most_s=60
    )
    timeout_s: float = _time(1.0, "Timeout of one token from an idle engine.", least_s=0.01, most_s=600)
    stall_after_s: float | None = _setting(
        None,
        "Longest time without progress while requests are in flight; 1s for decodes and 3s or more for prefills "
        "when unset.",
        least=0.1,
        most=86_400.0,
    )
    unhealthy_after: int = _setting(2, "Consecutive soft failures before the verdict changes.", least=1, most=100)
    healthy_after: int = _setting(1, "Consecutive successes before the engine is ready again.", least=1, most=100)
    error_percent: float = _setting(
        40.0, "Share of failed requests that makes the verdict error.", least=1, most=100
    )
    error_requests: int = _setting(
        25, "Requests in the last 30 s before that share counts.", least=1, most=100_000
    )
    start_limit_s: float = _time(1800.0, "Startup time without a listening engine before it is dead.")
    warm_up: tuple[int, ...] = _setting((), "Prompt lengths in words to run before ready, e.g. 128,2048.")
    warm_up_timeout_s: float = _time(60.0, "Timeout of one warm-up prompt.", least_s=0.1)
    restart_after_hung_s: float = _time(60.0, "Time hung before /livez fails; 0s: never.")
    restart_after_error_s: float = _time(5.0, "Time dead or in error before /livez fails.")
    drain_deadline_s: float | None = field(
        default=None,
        metadata=_metadata(
            "Deadline of a drain on SIGTERM, and least deadline of other drains without one.",
            least=0.0,
            most=86_400.0,
            absent="drain.deadline of the pool, 30s until a control plane sends it",
        ),
    )
    remote_drain: bool = _setting(False, "Allow other machines to drain this engine.")
    gpu: Literal["auto", "off"] = _setting("auto", "Read the GPUs through NVML.")
    gpu_devices: tuple[str, ...] = _setting(
        (), "NVML indexes or UUIDs of the engine's GPUs by rank; all when empty."
    )
    gpu_actions: tuple[str, ...] = _setting(
        (), "Override the action of GPU signals, e.g. xid.63=none,nvlink_down=drain."
    )
    gpu_dcgm: str = _setting("", "Read this DCGM exporter instead of NVML, e.g. http://127.0.0.1:9400/metrics.")
    gpu_check_python: str = _setting("", "Python with torch for the deep GPU check; disabled when empty.")
    tls_cert: str = _setting("", "Certificate (chain), PEM, of both ports; reloaded when it changes.")
    tls_key: str = _setting("", "Key of that certificate, PEM, without a passphrase.")
    tls_ca: str = _setting("", "CA bundle, PEM, that verifies control planes.")
    allowed_clients: tuple[str, ...] = _setting(
        (),
        "URI or DNS SANs that may watch and drain (* matches all but /); all when empty.",
    )
    insecure: bool = _setting(False, "Allow plain text from other machines, without --tls-cert.")
    log_format: Literal["text", "json"] = _setting("text", "Format of the log on stderr.")

    @property
    def probe(self) -> ProbeSettings:
        """Settings of the engine probes."""
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
        """Certificate files of both ports; None for plain text."""
        if not self.tls_cert:
            return None
        return TlsFiles(certificate=Path(self.tls_cert), key=Path(self.tls_key), authorities=Path(self.tls_ca))

    @property
    def engine_trust(self) -> TrustFiles | None:
        """Trust and client certificate for the engine; None for plain HTTP."""
        if not self.engine.secure:
            return None
        proof = (Path(self.engine_certificate), Path(self.engine_key)) if self.engine_key else (None, None)
        return TrustFiles(authorities=Path(self.engine_ca), certificate=proof[0], key=proof[1])

    def check(self) -> None:
        """Raise AgentConfigError for settings that conflict."""
        self._check_engine()
        files = {"--tls-cert": self.tls_cert, "--tls-key": self.tls_key, "--tls-ca": self.tls_ca}
        missing = [name for name, path in files.items() if not path]
        if 0 < len(missing) < len(files):
            raise AgentConfigError(f"missing {missing[0]}: --tls-cert, --tls-key and --tls-ca go together")
        if missing and self.allowed_clients:
            raise AgentConfigError("--allowed-clients needs --tls-cert: plain text proves no identity")
        if not missing and self.insecure:
            raise AgentConfigError("--insecure and --tls-cert are mutually exclusive")
        for name, address in (("--http", self.http), ("--grpc", self.grpc)):
            if missing and not self.insecure and not address.is_loopback:
                raise AgentConfigError(
                    f"{name} {address} accepts unauthenticated plain text from other machines: set --tls-cert, "
                    "--tls-key and --tls-ca, or --insecure"
                )

    def _check_engine(self) -> None:
        tls = {
            "--engine-ca": self.engine_ca,
            "--engine-certificate": self.engine_certificate,
            "--engine-key": self.engine_key,
            "--engine-server-name": self.engine_server_name,
        }
        unused = [name for name, text in tls.items() if text]
        if not self.engine.secure:
            if unused:
                raise AgentConfigError(f"{unused[0]} needs TLS, and --engine is {self.engine}: write https://")
            return
        if not self.engine_ca:
            raise AgentConfigError(
                f"--engine {self.engine} needs --engine-ca, e.g. /etc/ssl/certs/ca-certificates.crt for the CAs "
                "of this machine"
            )
        if bool(self.engine_certificate) is not bool(self.engine_key):
            missing = "--engine-key" if self.engine_certificate else "--engine-certificate"
            raise AgentConfigError(f"missing {missing}: --engine-certificate and --engine-key go together")

    @property
    def gpu_policy(self) -> GpuPolicy:
        """Actions of GPU signals; ValueError names an invalid one."""
        words: dict[str, str] = {}
        for override in self.gpu_actions:
            signal, _, action = override.partition("=")
            words[signal] = action
        return GpuPolicy().overridden(words)


def flag_name(setting: "Field[Any]") -> str:
    """Flag of a setting."""
    return f"--{setting.name.removesuffix('_s').replace('_', '-')}"


def environment_variable(setting: "Field[Any]") -> str:
    """Environment variable of a setting."""
    return ENVIRONMENT_PREFIX + setting.name.removesuffix("_s").upper()


def file_key(setting: "Field[Any]") -> str:
    """Key of a setting in the file."""
    first, *more = setting.name.removesuffix("_s").split("_")
    return first + "".join(word.capitalize() for word in more)


def agent_config(
    flags: Mapping[str, str], *, environment: Mapping[str, str] = os.environ, file: Path | None = None
) -> AgentConfig:
    """Merge flags (by field name), environment and file; AgentConfigError with every fault."""
    settings = {setting.name: setting for setting in fields(AgentConfig)}
    given: dict[str, tuple[str, str]] = {}
    problems: list[str] = []
    if file is not None:
        from engine.agent.agent_config_file import file_settings  # noqa: PLC0415 -- saves the memory of a YAML parser

        by_key = {file_key(setting): name for name, setting in settings.items()}
        for found, place, text in file_settings(file):
            if found not in by_key:
                problems.append(f"{place}: unknown setting {found}; settings: {', '.join(sorted(by_key))}")
            else:
                given[by_key[found]] = (f"{place}: {found}", text)
    for name, setting in settings.items():
        if environment_variable(setting) in environment:
            given[name] = (environment_variable(setting), environment[environment_variable(setting)])
        if name in flags:
            given[name] = (flag_name(setting), flags[name])
    known = {environment_variable(setting) for setting in settings.values()} | {f"{ENVIRONMENT_PREFIX}CONFIG"}
    unknown = (name for name in sorted(environment) if name.startswith(ENVIRONMENT_PREFIX) and name not in known)
    problems.extend(f"{name}: unknown setting" for name in unknown)
    hints = typing.get_type_hints(AgentConfig)
    values: dict[str, Any] = {}
    for name, (place, text) in given.items():
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
        raise AgentConfigError(f"{given['gpu_actions'][0]}: {error}") from error
    return config


def format_default(setting: "Field[Any]") -> str:
    """The default as text."""
    value = setting.default
    if value is MISSING or value in ("", (), None):
        return str(setting.metadata["absent"])
    if setting.name.endswith("_s"):
        return f"{value * 1000:g}ms" if 0 < value < 1 else f"{value:g}s"
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_duration(text: str) -> float:
    """Parse 250ms, 1s, 2m or 1h; seconds. ValueError names the format."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("write a duration with its unit, e.g. 250ms, 1.5s or 2m")
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
        return None if setting.default is None and not text else parse_duration(text)
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
        raise ValueError("prompt lengths must be 1 to 1000000 words")
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
