"""Texts of engines, exporters and people, spoiled: the reader's own error or a value, at a bounded price."""

import contextlib
import math
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from chaos.scenario.scenario_reader import read_scenarios
from engine.gpu.dcgm import DcgmError, dcgm_gpus, dcgm_vitals, dcgm_wear
from engine.vllm_metrics import MetricsError, VllmCounters, vllm_counters
from istio.imports.source_documents import source_documents
from policies.findings import PolicyErrors
from policies.load import LoadCache, load, load_contents
from policies.yaml_text import MAX_ALIASED_CHARACTERS, MAX_DEPTH, parse
from tests.fuzz.mutations import broken, seeds, spoiled
from xds_server.auth.rules_file import read_access
from xds_server.cli import main

ROOT = Path(__file__).parents[2]
FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
SCENARIOS = tuple(path.read_bytes() for path in sorted((ROOT / "chaos" / "scenarios").glob("*.yaml"))[:6])
ACCESS = (
    b"apiVersion: switchgear.dev/v1alpha1\nkind: Access\nmetadata: {name: fleet}\nspec:\n  proxies:\n"
    b"    - identities: ['spiffe://fleet/gateway/*']\n      pools: [chat]\n  admin: []\n",
)
ISTIO = (
    b"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: chat, namespace: ai}\nspec:\n"
    b"  host: chat.ai.svc.cluster.local\n  trafficPolicy:\n"
    b"    connectionPool: {http: {http1MaxPendingRequests: 5}}\n"
    b"    outlierDetection: {consecutive5xxErrors: 5, interval: 10s}\n---\n"
    b"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: chat, namespace: ai}\nspec:\n"
    b"  hosts: [chat]\n  http:\n  - timeout: 10s\n    retries: {attempts: 3, perTryTimeout: 2s}\n"
    b"    route: [{destination: {host: chat.ai.svc.cluster.local, port: {number: 80}}}]\n",
)
STACK = (
    b"servingEngineSpec:\n  modelSpec:\n  - name: chat\n    modelURL: meta/llama\n    replicaCount: 2\n"
    b"    vllmConfig: {maxModelLen: 4096, extraArgs: ['--max-num-seqs', '64']}\nrouterSpec:\n"
    b"  routingLogic: roundrobin\n  serviceDiscovery: static\n  staticBackends: http://a:8000,http://b:8000\n"
    b"  staticModels: m,m\n",
)
POOL = (
    b"apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\n"
    b"metadata: {name: chat, namespace: ai}\nspec:\n  selector: {matchLabels: {app: vllm}}\n"
    b"  targetPorts: [{number: 8000}]\n"
    b"  endpointPickerRef: {name: epp, port: {number: 9002}}\n",
)


@FUZZ
@given(text=spoiled("vllm_metrics"))
def test_metrics_of_an_engine(text: bytes) -> None:
    try:
        found = vllm_counters(text, latency=True)
    except MetricsError:
        return
    for name in VllmCounters.__slots__:
        value = getattr(found, name)
        assert not isinstance(value, float) or (math.isfinite(value) and value >= 0), name


@FUZZ
@given(text=spoiled("dcgm"))
def test_metrics_of_an_exporter(text: bytes) -> None:
    try:
        gpus = dcgm_gpus(text.decode("utf-8", "replace"))
    except DcgmError:
        return
    for gpu in gpus:
        dcgm_vitals(gpu.fields)
        dcgm_wear(gpu.fields)


@FUZZ
@given(content=broken(SCENARIOS))
def test_scenarios(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    with contextlib.suppress(PolicyErrors):
        read_scenarios([path])


@FUZZ
@given(content=broken(ACCESS))
def test_mutated_authorization_rules_are_read_or_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with contextlib.suppress(PolicyErrors):
        read_access(path)


@pytest.mark.parametrize(
    ("kind", "content"),
    [("istio", ISTIO), ("production-stack", STACK), ("inferencepool", POOL)],
    ids=["istio", "production-stack", "inferencepool"],
)
@settings(parent=FUZZ, max_examples=25)
@given(data=broken((*ISTIO, *STACK, *POOL)))
def test_imports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, content: tuple[bytes, ...], data: bytes
) -> None:
    path = tmp_path / "in.yaml"
    for one in (data, data.replace(data[:40], content[0][:40])):
        path.write_bytes(one)
        assert main(["import", kind, "-f", str(path)]) in (0, 1, 2)
        capsys.readouterr()


def bomb(levels: int) -> bytes:
    """Nine to the power of ``levels`` words in a few hundred bytes."""
    lines = ["a0: &a0 [" + ",".join(["lol"] * 9) + "]"]
    lines += [f"a{n}: &a{n} [" + ",".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, levels)]
    return "\n".join(lines).encode()


BOMBS = {
    "aliases of aliases": bomb(12),
    "aliases in keys": b"a: &a [" + b"x," * 1_000 + b"]\n" + b"? *a\n: 1\n" * 500,
    "merges of merges": b"a: &a {x: 1}\n"
    + b"".join(b"b%d: &b%d {<<: [*a%s]}\n" % (n, n, b", *a" * 50) for n in range(200)),
    "lists in lists": b"[" * 100_000,
    "mappings in mappings": b"{a: " * 100_000,
    "blocks in blocks": b"".join(b" " * n + b"a:\n" for n in range(2_000)),
    "sequences in sequences": b"- " * 100_000,
    "a key of a megabyte": b"? " + b"x" * 1_000_000 + b"\n: 1\n",
    "a number of a megabyte": b"a: " + b"9" * 1_000_000 + b"\n",
    "a hexadecimal number of a megabyte": b"a: 0x" + b"f" * 1_000_000 + b"\n",
    "documents of nothing": b"---\n" * 10_000,
    "anchors without end": b"".join(b"- &a%d x\n" % n for n in range(10_000)),
    "tags without end": b"- !!int a\n" * 20_000,
    "a tag that would run code": b"!!python/object/apply:os.system ['true']\n",
    "directives": b"%TAG ! tag:example.com,2000:\n" * 20_000,
    "zero bytes": b"\x00" * 100_000,
    "two orders of bytes": b"\xff\xfe" + b"\xfe\xff" * 50_000,
    "marks without end": b"\xef\xbb\xbf" * 50_000,
    "lone surrogates": b'a: "\\ud800"\n',
    "other ends of lines": "a: b\u2028c: d\x85e: f\n".encode() * 1_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_alias_bomb_is_rejected_in_linear_time(name: str) -> None:
    content = BOMBS[name]
    tracemalloc.start()
    try:
        with pytest.raises(PolicyErrors):
            load_contents({Path("bomb.yaml"): content}, LoadCache())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A node of YAML is two bytes at the least, and an object with its place some hundred.
    assert most <= 400 * len(content) + 20_000_000


def test_yaml_limits_match_their_constants() -> None:
    assert not parse("[" * MAX_DEPTH + "]" * MAX_DEPTH).problems
    assert parse("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)).problems
    assert MAX_ALIASED_CHARACTERS == 10_000_000


def test_corpora_are_sound_to_begin_with(tmp_path: Path) -> None:
    for text in seeds("vllm_metrics"):
        assert vllm_counters(text, latency=True).tokens > 0
    for text in seeds("dcgm"):
        assert [gpu.index for gpu in dcgm_gpus(text.decode())] == ["0", "1"]
    for number, content in enumerate(SCENARIOS):
        path = tmp_path / f"s{number}.yaml"
        path.write_bytes(content)
        assert read_scenarios([path])
    for number, content in enumerate((*ISTIO, *POOL, *STACK)):
        path = tmp_path / f"i{number}.yaml"
        path.write_bytes(content)
        assert source_documents([str(path)], "values")
    assert load([ROOT / "policies" / "examples" / "single-pool.yaml"]).pools
