"""Whatever is in a file: valid policies or none, a list of what was left, and never a traceback."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import example, given, settings

from istio.imports.draft_validation import ImportResult
from istio.imports.from_inferencepool import from_inferencepool
from istio.imports.from_istio import from_istio
from istio.imports.from_production_stack import from_production_stack
from istio.imports.policy_draft import NameAllocator, policy_name
from istio.imports.policy_drafts import ImportOptions
from istio.imports.source_documents import SourceDocument
from istio.imports.source_values import seconds
from policies.load import load_contents
from policies.policy_files import MAX_FILE_BYTES
from policies.yaml_text import parse

Import = Callable[..., Any]

KINDS = ("istio", "production-stack", "inferencepool")
BROKEN = [
    b"",
    b"# nothing\n",
    b"\xff\xfe\x00",
    b"a: [1, 2",
    b"a: 1\na: 2\n",
    b"\tkind: x\n",
    b"kind: DestinationRule\n---\nspec: {host: [\n",
    b"a: &a [*a]\n",
    b"[" * 100,
]
ODD = [
    "[]",
    "7",
    "text",
    "kind: List\nitems: [1, {}, null]\n",
    "kind: 3\napiVersion: []\nmetadata: [1]\nspec: 3\n",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", BROKEN)
def test_invalid_yaml_is_refused_with_its_location(run_import: Import, kind: str, content: bytes) -> None:
    found = run_import(kind, content)
    assert (found.status, found.text) == (2, "")
    assert "in.yaml" in found.listing
    assert "SG0" in found.listing


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", ODD)
def test_foreign_input_yields_no_policy(run_import: Import, kind: str, content: str) -> None:
    found = run_import(kind, content)
    assert (found.status, found.text) == (2, "")
    assert "these files yield no policy" in found.listing


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stdin", [True, False])
def test_oversized_input_is_refused(run_import: Import, kind: str, stdin: bool) -> None:
    found = run_import(kind, b"#" * (MAX_FILE_BYTES + 1), stdin=stdin)
    assert (found.status, found.text) == (2, "")
    assert "SG005" in found.listing


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_not_there(run_import: Import, kind: str, tmp_path: Path) -> None:
    found = run_import(kind, "x: 1\n", str(tmp_path / "nowhere.yaml"))
    assert (found.status, found.text) == (2, "")
    assert "nowhere.yaml" in found.listing


def test_one_broken_file_of_two_stops_both(run_import: Import, tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a}\nspec: {host: a}\n"
    )
    found = run_import("istio", "a: [", str(good))
    assert (found.status, found.text) == (2, "")
    assert run_import("istio", good.read_bytes()).status == 0


_WORDS = st.sampled_from(
    [
        "chat",
        "a.b.svc.cluster.local",
        "*",
        "v1",
        "10.0.0.1",
        "5s",
        "0s",
        "-1s",
        "1h",
        "/v1",
        "(",
        "RANDOM",
        "default",
    ]
)
_SCALARS = st.one_of(
    _WORDS, st.integers(-5, 200_000), st.floats(allow_nan=False), st.booleans(), st.none(), st.text(max_size=8)
)


def _blocks(words: str) -> st.SearchStrategy[Any]:
    names = words.split()
    return st.recursive(
        _SCALARS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(names), inner, max_size=6)
        ),
        max_leaves=25,
    )


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly a block with most of these fields, now and then anything else."""
    whole = st.fixed_dictionaries(fields)
    part = st.fixed_dictionaries({}, optional={**fields, "unheardOf": _SCALARS})
    return _mostly(st.one_of(whole, part))


def _mostly(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 19).flatmap(lambda one: _SCALARS if one == 13 else usual)


def _list(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return _mostly(st.lists(items, min_size=1, max_size=3))


_ANY = st.one_of(_SCALARS, _blocks("exact prefix regex value number a b"))
_TEXT = st.fixed_dictionaries({}, optional={"exact": _ANY, "prefix": _ANY, "regex": _ANY})
_POLICY = _some(
    outlierDetection=_some(
        interval=_ANY, baseEjectionTime=_ANY, maxEjectionPercent=_ANY, consecutive5xxErrors=_ANY,
        consecutiveGatewayErrors=_ANY, outlierDetectionHttpErrorCodes=_list(_ANY),
    ),
    connectionPool=_some(
        tcp=_some(maxConnections=_ANY, connectTimeout=_ANY), http=_some(http2MaxRequests=_ANY, maxRetries=_ANY)
    ),
    loadBalancer=_some(
        simple=_ANY, warmup=_some(duration=_ANY, minimumPercent=_ANY), localityLbSetting=_some(enabled=_ANY)
    ),
    retryBudget=_some(percent=_ANY, minRetryConcurrency=_ANY),
    tls=_some(
        mode=st.sampled_from(["SIMPLE", "MUTUAL", 1]), credentialName=_ANY, sni=_ANY, subjectAltNames=_list(_ANY)
    ),
)  # fmt: skip
_DESTINATION = _some(host=_WORDS, subset=_WORDS, port=_some(number=_ANY))
_ISTIO = {
    "DestinationRule": _some(
        host=_WORDS, trafficPolicy=_POLICY, subsets=_list(_some(name=_WORDS, labels=_ANY, trafficPolicy=_POLICY))
    ),
    "VirtualService": _some(
        hosts=_list(_WORDS),
        http=_list(
            _some(
                match=_list(_some(uri=_TEXT, headers=st.dictionaries(_WORDS, _TEXT, max_size=2), port=_ANY)),
                route=_list(_some(destination=_DESTINATION, weight=_ANY)),
                timeout=_ANY,
                retries=_some(attempts=_ANY, retryOn=_ANY, backoff=_ANY, perTryTimeout=_ANY),
                delegate=_some(name=_WORDS),
            )
        ),
    ),
    "ServiceEntry": _some(
        hosts=_list(_WORDS),
        ports=_list(_some(number=_ANY, name=_WORDS, targetPort=_ANY)),
        endpoints=_list(_some(address=_WORDS, weight=_ANY, locality=_ANY, labels=_ANY)),
        resolution=_ANY,
        workloadSelector=_some(labels=_ANY),
    ),
    "WorkloadEntry": _some(address=_WORDS, labels=_ANY, weight=_ANY),
}
_REFERENCE = _some(name=_WORDS, kind=st.sampled_from(["InferencePool", "Service"]), weight=_ANY, port=_ANY)
_GATEWAY = {
    "InferencePool": _some(
        selector=_some(matchLabels=st.dictionaries(_WORDS, _ANY, max_size=2)),
        targetPorts=_list(_some(number=_ANY)),
        endpointPickerRef=_ANY,
    ),
    "InferenceModel": _some(modelName=_WORDS, poolRef=_some(name=st.just("chat")), criticality=_ANY),
    "InferenceObjective": _some(poolRef=_some(name=st.just("chat")), priority=_ANY),
    "HTTPRoute": _some(
        hostnames=_list(_WORDS),
        parentRefs=_list(_some(port=_ANY)),
        rules=_list(
            _some(
                matches=_list(
                    _some(
                        path=_some(type=_ANY, value=_ANY),
                        headers=_list(_some(name=_WORDS, value=_ANY, type=_ANY)),
                        method=_ANY,
                    )
                ),
                backendRefs=_list(_REFERENCE),
                timeouts=_some(request=_ANY, backendRequest=_ANY),
                retry=_some(attempts=_ANY, codes=_list(_ANY), backoff=_ANY),
            )
        ),
    ),
}
_VALUES = _some(
    servingEngineSpec=_some(
        containerPort=_ANY,
        modelSpec=_list(
            _some(
                name=_WORDS, modelURL=_WORDS, replicaCount=_ANY, requestGPU=_ANY, raySpec=_ANY, lmcacheConfig=_ANY,
                vllmConfig=_some(maxNumSeqs=_ANY, extraArgs=_list(_ANY), runner=_ANY),
            )
        ),
    ),
    routerSpec=_some(
        serviceDiscovery=st.just("static"),
        staticBackends=st.sampled_from(["http://a:1,http://b", "http://[::1]:8,ftp://x", "http://x:99999", ""]),
        staticModels=st.sampled_from(["m,m", "m,n", "m", ""]),
        routingLogic=_ANY,
    ),
)  # fmt: skip


def _objects(specs: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[list[tuple[str, Any]]]:
    one = st.sampled_from(sorted(specs)).flatmap(lambda kind: st.tuples(st.just(kind), specs[kind]))
    return st.lists(one, min_size=1, max_size=4)


def _sources(documents: Sequence[object]) -> tuple[SourceDocument, ...]:
    text = yaml.safe_dump_all(documents, allow_unicode=True)
    parsed = parse(text)
    if parsed.problems:
        return ()
    return tuple(SourceDocument(file="in.yaml", value=raw.value, places=raw.places) for raw in parsed.documents)


def _holds(found: ImportResult) -> None:
    if found.text:
        load_contents({Path("imported.yaml"): found.text.encode()})


@settings(max_examples=150)
@given(_objects(_ISTIO))
@example([("DestinationRule", {"host": "default", "trafficPolicy": {"outlierDetection": {"interval": "5s"}}})])
def test_istio_comes_to_valid_policies_or_none(documents: list[tuple[str, object]]) -> None:
    objects = [
        {"apiVersion": "networking.istio.io/v1", "kind": kind, "metadata": {"name": f"n{number}"}, "spec": spec}
        for number, (kind, spec) in enumerate(documents)
    ]
    _holds(from_istio(_sources(objects), ImportOptions()))


@settings(max_examples=150)
@given(_objects(_GATEWAY))
def test_gateway_objects_come_to_valid_policies_or_none(documents: list[tuple[str, object]]) -> None:
    objects = [
        {
            "apiVersion": "gateway.networking.k8s.io/v1"
            if kind == "HTTPRoute"
            else "inference.networking.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "chat" if kind == "InferencePool" else f"n{number}"},
            "spec": spec,
        }
        for number, (kind, spec) in enumerate(documents)
    ]
    _holds(from_inferencepool(_sources(objects), ImportOptions()))


@settings(max_examples=150)
@given(_VALUES)
def test_values_come_to_valid_policies_or_none(values: object) -> None:
    _holds(from_production_stack(_sources([values]), ImportOptions(), "vllm"))


@given(st.lists(st.text(max_size=90), max_size=8))
def test_names_are_given_once_and_are_names(texts: list[str]) -> None:
    names = NameAllocator()
    given_out = [names.allocate(text) for text in texts]
    assert len(set(given_out)) == len(given_out)
    assert all(policy_name(one) == one and len(one) <= 63 for one in given_out)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1h30m", 5400.0), ("0.5s", 0.5), ("100us", 0.0001), (".5s", 0.5), ("0", 0.0), ("5", None), ("s", None),
     ("-1s", None), ("1s ", 1.0), ("1 s", None), ("1" * 200 + "s", None), ("", None)],
)  # fmt: skip
def test_durations_of_others(text: str, expected: float | None) -> None:
    assert seconds(text) == (pytest.approx(expected) if expected is not None else None)
