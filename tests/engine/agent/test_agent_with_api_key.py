"""An agent next to an engine that asks for an API key."""

from pathlib import Path

import pytest

from engine.api_key_file import ApiKeyFile, parse_api_key
from tests.engine.agent.conftest import StartAgent, StartEngine

pytestmark = pytest.mark.timeout(400)

_FAST = ("--gpu", "off", "--interval", "50ms", "--idle-interval", "50ms")


async def test_agent_without_the_key_reports_misconfigured(
    start_agent: StartAgent, start_engine: StartEngine
) -> None:
    engine = await start_engine(api_key="s3cret-key")
    agent = await start_agent(engine.url, *_FAST)
    _, report = await agent.until("misconfigured")
    assert report["doubt"] == "refused"
    assert "401" in report["evidence"]
    await agent.until_probes(503, 200, 503)


async def test_agent_sends_the_key_and_follows_its_file(
    start_agent: StartAgent, start_engine: StartEngine, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("wrong-key\n")
    engine = await start_engine(api_key="s3cret-key")
    agent = await start_agent(engine.url, *_FAST, "--engine-api-key-file", str(file))
    await agent.until("misconfigured")
    file.write_text("s3cret-key\n")
    await agent.until("ready")
    await agent.until_probes(200, 200, 200)
    assert "s3cret-key" not in str(await agent.report())


def test_unusable_key_file_keeps_the_previous_key(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("first")
    key = ApiKeyFile(file)
    file.write_text("")
    assert key() == "first"
    file.unlink()
    assert key() == "first"
    file.write_text("second\n")
    assert key() == "second"


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"a\nb", "schlüssel".encode(), b"x" * 5000])
def test_unusable_keys_are_refused_without_quoting_them(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"empty|bytes|ASCII") as caught:
        parse_api_key(content)
    shown = content.decode().strip()
    assert not shown or shown not in str(caught.value)
