"""Conversion changes apiVersion and no other byte, or nothing at all."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversion import convert_content
from policies.document import API_VERSION, NEWEST_API_VERSION
from policies.load import validate_content

OLD, NEW = API_VERSION, NEWEST_API_VERSION
EXAMPLES = sorted((Path(__file__).parents[2] / "policies" / "examples").glob("*.yaml"))
POOL = "kind: EnginePool\nmetadata: {name: chat}\nspec: {model: m}\n"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_convert_there_and_back(path: Path) -> None:
    content = path.read_bytes()
    converted = convert_content(content, NEW)
    assert isinstance(converted, bytes)
    assert converted == content.replace(f"apiVersion: {OLD}".encode(), f"apiVersion: {NEW}".encode()) != content
    assert convert_content(converted, OLD) == content
    assert convert_content(converted, NEW) == converted
    assert not validate_content(converted).problems


@pytest.mark.parametrize(
    "text",
    [
        f"# {OLD}\napiVersion:   {OLD}   # {OLD}, kept\n{POOL}",
        f"apiVersion: '{OLD}'\n{POOL}---\n# no document\n---\napiVersion: \"{OLD}\"\n{POOL}",
        f'{{"kind": "EnginePool", "metadata": {{"name": "{"x" * 50}"}}, "apiVersion": "{OLD}", "spec": {{}}}}',
        f"apiVersion: !!str &v {OLD}\n{POOL}",
        f"apiVersion:\n  {OLD}\n{POOL}",
        f"\r\n\r\napiVersion: {OLD}\r\nkind: EnginePool\r\n",
        f"# \N{LINE SEPARATOR}# \N{GREEK SMALL LETTER ALPHA}\U0001f600\n? apiVersion\n: {OLD}\nkind: EnginePool\n",
        f"metadata: {{annotations: {{was: {OLD}}}}}\nkind: EnginePool\napiVersion: {OLD}",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_only_the_version_changes(text: str, encoding: str) -> None:
    content = text.encode(encoding)
    converted = convert_content(content, NEW)
    assert isinstance(converted, bytes)
    before, after = text.split(OLD), converted.decode(encoding).replace(NEW, OLD)
    assert after == text
    assert converted.decode(encoding).count(NEW) == text.count("piVersion"), before
    assert convert_content(converted, OLD) == content


def test_documents_of_others_stay() -> None:
    content = f"apiVersion: v1\nkind: ConfigMap\ndata: {{a: {OLD}}}\n---\napiVersion: switchgear.dev/v1\n".encode()
    assert convert_content(content, NEW) == content


@pytest.mark.parametrize(
    "text",
    [
        f"metadata: {{annotations: {{was: &v {OLD}}}}}\napiVersion: *v\nkind: EnginePool\n",
        'apiVersion: "switchgear\\u002edev/v1alpha1"\nkind: EnginePool\n',
        f"x: &m {{apiVersion: {OLD}}}\n<<: *m\nkind: EnginePool\n",
    ],
)
def test_indirect_versions_are_refused(text: str) -> None:
    problems = convert_content(text.encode(), NEW)
    assert isinstance(problems, tuple)
    assert [one.code for one in problems] == ["SG029"]


def test_unreadable_texts_are_refused() -> None:
    for content, code in ((b"\xff\xfe\x00", "SG010"), (b"a: [", "SG011"), (b"a: 1\na: 2\n", "SG013")):
        problems = convert_content(content, NEW)
        assert isinstance(problems, tuple)
        assert [one.code for one in problems] == [code]


TEXTS = st.text(alphabet=f"a:-[]{{}}&*!'\"#\n\r \t\\{OLD}", max_size=80)


@given(before=TEXTS, after=TEXTS)
def test_any_text_is_converted_exactly_or_not_at_all(before: str, after: str) -> None:
    text = f"{before}\napiVersion: {OLD}\n{after}"
    converted = convert_content(text.encode(), NEW)
    if isinstance(converted, bytes):
        assert converted.decode().replace(NEW, OLD) == text.replace(NEW, OLD)
        assert convert_content(converted, NEW) == converted
