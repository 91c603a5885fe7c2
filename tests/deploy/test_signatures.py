"""Types the commands that sign and verify a release, on the page as readers have them, with the real cosign.

No network is there but loopback, with a registry of its own: nothing reaches a public log.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.shell import ROOT, Shell, apart, shell
from tests.walkthrough import copied
from tests.wheel import built_wheel

PAGE: Final = ROOT / "docs" / "verifying.md"
BUILDS: Final = {
    "cosign": "go install github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3",
    "crane": "go install github.com/google/go-containerregistry/cmd/crane@v0.20.6",
}
"""How to get what the tests need; crane has the registry."""
ABSENT: Final = [
    f"{name} is not installed; `{how}` builds it" for name, how in BUILDS.items() if not shutil.which(name)
]

pytestmark = [
    pytest.mark.skipif(bool(ABSENT), reason="; ".join(ABSENT)),
    pytest.mark.skipif(not apart(), reason="this machine forbids network namespaces (unshare)"),
]
IMAGE: Final = "localhost:5000/switchgear/control-plane"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Shell]:
    """A shell in a folder with a wheel and an SBOM."""
    (tmp_path / "sbom.json").write_text('{"bomFormat": "CycloneDX", "specVersion": "1.6"}')
    shutil.move(built_wheel(tmp_path / "dist"), tmp_path)
    with shell(tmp_path, {"HOME": str(tmp_path), "COSIGN_PASSWORD": ""}, apart=True) as opened:
        opened.type("ip link set lo up; crane registry serve --address 127.0.0.1:5000 &")
        opened.type("until crane ls localhost:5000/none 2>&1 | grep -q NAME; do :; done")
        yield opened


def pushed(opened: Shell, content: str) -> str:
    """The digest of a new image in the registry."""
    opened.type(f"echo {content} > content; tar -cf layer.tar content")
    printed = opened.type(f"crane append -f layer.tar -t {IMAGE}:{content}")
    return re.findall(r"@sha256:([0-9a-f]{64})$", printed, re.MULTILINE)[-1]  # type: ignore[no-any-return]


def test_page_signs_and_verifies_files_and_images(opened: Shell) -> None:
    digest = pushed(opened, "signed")
    page = PAGE.read_text().replace("REGISTRY/switchgear/control-plane@sha256:DIGEST", f"{IMAGE}@sha256:{digest}")
    commands = [command for _, command in copied(page)]
    for command in commands:
        status, printed = opened.typed(command)
        assert status == 0, f"{command}\n{printed}"

    refused = [command for command in commands if command.startswith(("cosign verify", "sha256sum --check"))]
    assert len(refused) == 4
    blob, files, image, sbom = refused
    # A wheel that changed, a list of hashes that follows it, an image without signature, another key.
    opened.type("echo >> switchgear-*.whl")
    assert opened.typed(blob)[0] == 0
    assert opened.typed(files)[0] != 0
    opened.type("sha256sum switchgear-* sbom.json > SHA256SUMS")
    assert opened.typed(files)[0] == 0
    assert "invalid signature" in opened.type(blob)
    unsigned = pushed(opened, "unsigned")
    assert "no signatures found" in opened.type(image.replace(digest, unsigned))
    assert "no matching attestations" in opened.type(sbom.replace(digest, unsigned))
    opened.type("rm cosign.*; cosign generate-key-pair")
    for command in (image, sbom):
        assert opened.typed(command)[0] != 0
