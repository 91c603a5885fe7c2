"""One dataclass, three ways to say it, and complaints that name the place."""

from dataclasses import fields
from pathlib import Path

import pytest

from engine.agent.agent_config import (
    AgentConfig,
    EngineUrl,
    agent_config,
    environment_variable,
    file_key,
    flag_name,
    format_default,
)
from engine.agent.config_error import AgentConfigError


def test_flag_overrides_environment_overrides_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("stallAfter: 5s\ntimeout: 6s\ninterval: 7s\nwarmUp: [128, 2048]\n")
    environment = {"SWITCHGEAR_AGENT_TIMEOUT": "2s", "SWITCHGEAR_AGENT_INTERVAL": "3s", "PATH": "/bin"}
    config = agent_config({"interval_s": "250ms"}, environment=environment, file=file)
    assert (config.stall_after_s, config.timeout_s, config.interval_s) == (5.0, 2.0, 0.25)
    assert config.warm_up == (128, 2048)
    assert config.slots == AgentConfig().slots


def test_every_invalid_setting_is_reported_with_its_location(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("# mine\nstallAfter: 1\nstallafter: 1s\nslots: 1.5\nremoteDrain: yes\n")
    environment = {"SWITCHGEAR_AGENT_GPU": "maybe", "SWITCHGEAR_AGENT_SLOT": "8"}
    with pytest.raises(AgentConfigError) as wrong:
        agent_config({"engine": "127.0.0.1:8000", "warm_up": "0"}, environment=environment, file=file)
    lines = str(wrong.value).splitlines()
    for start in (
        f"{file}:2: stallAfter: '1': write a duration",
        f"{file}:3: unknown setting stallafter",
        f"{file}:4: slots: '1.5': must be a whole number",
        f"{file}:5: remoteDrain: 'yes': must be one of true, false",
        "SWITCHGEAR_AGENT_GPU: 'maybe': must be one of auto, off",
        "SWITCHGEAR_AGENT_SLOT: unknown setting",
        "--engine: '127.0.0.1:8000': write http://",
        "--warm-up: '0': prompt lengths",
    ):
        assert any(line.startswith(start) for line in lines), (start, lines)
    assert len(lines) == 8


@pytest.mark.parametrize(
    ("text", "line"), [("- a\n", 1), ("a: [\n", 2), ("slots: 1\nslots: 2\n", 2), ("slots: {a: 1}\n", 1)]
)
def test_invalid_file_is_refused(tmp_path: Path, text: str, line: int) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(text)
    with pytest.raises(AgentConfigError, match=f"agent.yaml:{line}: "):
        agent_config({}, environment={}, file=file)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentConfigError, match="No such file"):
        agent_config({}, environment={}, file=tmp_path / "none.yaml")


def test_empty_file_sets_nothing(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("# nothing yet\n")
    assert agent_config({}, environment={}, file=file) == AgentConfig()


@pytest.mark.parametrize("setting", fields(AgentConfig), ids=lambda setting: setting.name)
def test_every_default_can_be_written_in_each_source(tmp_path: Path, setting: object) -> None:
    text = "" if format_default(setting) == setting.metadata["absent"] else format_default(setting)  # type: ignore[arg-type,attr-defined] # a field
    assert flag_name(setting).startswith("--")  # type: ignore[arg-type]
    file = tmp_path / "agent.yaml"
    file.write_text(f"{file_key(setting)}: '{text}'\n")  # type: ignore[arg-type]
    by_file = agent_config({}, environment={}, file=file)
    assert by_file == AgentConfig() == agent_config({}, environment={environment_variable(setting): text})  # type: ignore[arg-type]


def test_gpu_actions_are_validated_at_the_start() -> None:
    config = agent_config({"gpu_actions": "xid.63=none, nvlink_down=drain"}, environment={})
    assert config.gpu_policy.xid_actions[63] == "none"
    with pytest.raises(AgentConfigError, match=r"--gpu-actions: xid\.63"):
        agent_config({"gpu_actions": "xid.63"}, environment={})


def test_engine_url_is_parsed() -> None:
    assert str(EngineUrl.parse("http://[::1]:8000/")) == "http://[::1]:8000"
    for wrong in ("ftp://a:1", "http://", "http://a:1/v1", "a:1", "http://a:99999"):
        with pytest.raises(ValueError, match=r"http://|Port"):
            EngineUrl.parse(wrong)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"http": ":1"}, "--http 0.0.0.0:1 accepts unauthenticated plain text"),
        ({"grpc": "10.0.0.1:1"}, "--grpc 10.0.0.1:1"),
        ({"tls_cert": "c", "tls_key": "k"}, "missing --tls-ca"),
        ({"tls_cert": "c", "tls_key": "k", "tls_ca": "a", "insecure": "true"}, "mutually exclusive"),
        ({"allowed_clients": "spiffe://a/b"}, "plain text proves no identity"),
    ],
)
def test_plaintext_beyond_loopback_needs_an_explicit_flag(flags: dict[str, str], says: str) -> None:
    with pytest.raises(AgentConfigError, match=says):
        agent_config(flags, environment={})


def test_mtls_or_explicit_plaintext_may_listen_everywhere() -> None:
    assert agent_config({"http": ":1", "insecure": "true"}, environment={}).tls is None
    secured = agent_config({"http": ":1", "tls_cert": "c", "tls_key": "k", "tls_ca": "a"}, environment={})
    assert secured.tls is not None
    assert secured.tls.key == Path("k")
