"""Every code is in the reference, and every code of the reference is used."""

import re
from pathlib import Path

import xds_server
from policies.codes import CODES, REMARKS
from policies.codes.operating_codes import OPERATING
from policies.reference import codes_markdown


def test_source_codes_match_the_table() -> None:
    sources = [
        path
        for folder in ("diagnosis", "cli")
        for path in (Path(xds_server.__file__).parent / folder).glob("*.py")
    ]
    used = {code for path in sources for code in re.findall(r"\bSG2\d{2}\b", path.read_text())}
    assert used == set(REMARKS)


def test_codes_are_unique_and_documented() -> None:
    assert len(REMARKS) == len(OPERATING)
    assert not set(REMARKS) & set(CODES)
    text = codes_markdown()
    assert [code for code in REMARKS if f"### {code}: " not in text] == []
    assert all(one.situation and one.fix.endswith(".") and one.meaning.endswith(".") for one in OPERATING)
