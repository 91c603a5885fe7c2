"""Fields declare the Envoy resources that an edit changes; this edits every field and compares.

Here every engine is healthy without traffic, so effects of decisions are invisible: a declaration may name more
hot resources than an edit changes, never fewer. A cold resource is declared only if an edit changes it.
"""

import copy
import itertools
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from policies.field_targets import Xds
from policies.load import load_contents
from policies.quantity import parse_duration
from policies.schema import FieldDoc, leaf_targets, leaves
from xds_server.model.fleet import declared
from xds_server.model.snapshot import content_of, same_own
from xds_server.model.type_urls import PUSH_ORDER, SHORT_NAMES
from xds_server.model.view import View
from xds_server.reconcile.pipeline import BuildInputs, BuildResult, Pipeline

VIEWS: Final = (View(zone="z1", region="r1"), View(zone="z2", region="r2", cuts=True))
ENGINES: Final = ((1, "z1", "r1"), (2, "z1", "r1"), (3, "z2", "r2"), (4, "z2", "r2"))
MATCH: Final = {"pathPrefix": "/v1", "model": "m", "stream": True, "headers": [{"name": "x-a", "exact": "b"}]}
PIPELINE: Final = Pipeline()
NODES: Final = {"n1": VIEWS[0], "n2": VIEWS[1]}


def engine(number: int, zone: str, region: str) -> dict[str, Any]:
    return {
        "address": f"10.0.0.{number}", "port": 8000, "name": f"e{number}", "zone": zone, "region": region,
        "revision": "2.1.0", "slots": 8, "labels": {"a": "b"},
    }  # fmt: skip


def document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "switchgear.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def spare(name: str, model: str) -> dict[str, Any]:
    engines = [{"address": f"{name}.example.com", "port": 8000, "zone": "z1", "region": "r1"}]
    return document("EnginePool", name, {"model": model, "endpoints": engines})


def prefill(name: str) -> dict[str, Any]:
    engines = [{"address": f"{name}.example.com", "port": 8000, "zone": "z1", "region": "r1"}]
    return document("EnginePool", name, {"model": "m", "stage": "prefill", "endpoints": engines})


TLS: Final = {"secret": "s", "serverName": "a.example.com"}
IDP: Final = {
    "name": "idp",
    "issuer": "https://idp.test",
    "remoteJwks": {"uri": "https://idp.test/keys", "tls": TLS},
    "claimToHeaders": [{"claim": "sub", "header": "x-caller"}],
}
PERIODS: Final = {"perDay": {"requests": 100}, "perMonth": {"requests": 1000}}
EXTERNAL: Final = {
    "accessLogCollector": {"address": "otel.test", "port": 4317, "tls": TLS},
    "extAuth": {"address": "authz.test", "port": 9001, "protocol": "http", "tls": TLS},
    "jwt": {"providers": [IDP]},
    "tenants": {
        "header": "x-caller",
        "trustHeader": True,
        "fairShares": True,
        "named": [{"name": "a", "requests": 10, "tokens": 1000, **PERIODS}],
        "others": {"requests": 10, "tokens": 1000, **PERIODS},
    },
    "deadline": {"header": "x-timeout"},
}
RICH: Final[Mapping[str, dict[str, Any]]] = {
    "EnginePool": document(
        "EnginePool",
        "chat",
        {
            "model": "m",
            "endpoints": [
                engine(1, "z1", "r1"),
                engine(2, "z1", "r1"),
                engine(3, "z2", "r2"),
                engine(4, "z2", "r2"),
            ],
            "firstTokenGate": True,
            "adapters": [{"name": "sql", "path": "/a", "engines": 1}],
            "tls": {"secret": "s", "serverName": "a.example.com", "subjectAltNames": ["b.example.com"]},
        },
    ),
    "ModelRoute": document(
        "ModelRoute",
        "front",
        {
            "listener": {"port": 8080, "tls": {"secret": "s"}, **EXTERNAL},
            "match": MATCH,
            "pools": [{"pool": "chat", "weight": 100}, {"pool": "spare", "weight": 50}],
            "fallbacks": ["small"],
        },
    ),
    "ResiliencePolicy": document(
        "ResiliencePolicy", "p", {"pools": ["chat"], "hedging": {"enabled": True, "delay": "1s"}}
    ),
}
OTHERS: Final = (
    spare("spare", "m2"),
    spare("small", "m3"),
    spare("last", "m5"),
    prefill("first"),
    prefill("second"),
    document("ModelRoute", "b", {"listener": {"port": 8081}, "pools": [{"pool": "chat"}], "priority": "batch"}),
)
Edits = tuple[tuple[str, str, Any], ...]
OTHER_KEYS: Final = '{"keys": [{"kty": "RSA", "n": "AQAC", "e": "AQAB"}]}'
BASES: Final[Mapping[str, Edits]] = {
    "rich": (),
    "plain": (
        ("ResiliencePolicy", "spec.hedging.enabled", False),
        ("ResiliencePolicy", "spec.slowStart.window", "5s"),
        ("EnginePool", "spec.tls", None),
        ("EnginePool", "spec.endpoints[].name", None),
        ("EnginePool", "spec.endpoints[].slots", None),
        ("ModelRoute", "spec.fallbacks", []),
    ),
    "one region": (
        ("EnginePool", "spec.endpoints[].region", ""),
        ("ResiliencePolicy", "spec.breaker.localEjection", "10s"),
        ("ResiliencePolicy", "spec.hedging.delay", None),
        ("ResiliencePolicy", "spec.limits.mode", "shadow"),
        ("ResiliencePolicy", "spec.timeouts.adaptive", False),
    ),
    "local keys": (
        ("ModelRoute", "spec.listener.jwt.providers[].remoteJwks", None),
        ("ModelRoute", "spec.listener.jwt.providers[].localJwks", {"inline": OTHER_KEYS}),
    ),
    "public": (
        ("ModelRoute", "spec.match.model", None),
        ("ModelRoute", "spec.match.stream", None),
    ),
    "bound to a region": (
        ("ModelRoute", "spec.allowedRegions", ["r2"]),
        ("ResiliencePolicy", "spec.hedging.enabled", False),
    ),
    "affinity": (("ModelRoute", "spec.affinity", {"header": "x-s"}),),
    "adapter": (
        ("ModelRoute", "spec.adapter", True),
        ("ModelRoute", "spec.adapterCanary", {"name": "v2", "percent": 5}),
    ),
    "static answer": (("ModelRoute", "spec.staticAnswer", {"fromLevel": 3, "body": "{}"}),),
    "stages": (
        ("EnginePool", "spec.stage", "decode"),
        ("ModelRoute", "spec.pools", [{"pool": "chat"}]),
        ("ModelRoute", "spec.prefill", {"pool": "first"}),
    ),
    "strict affinity": (
        ("ModelRoute", "spec.pools", [{"pool": "chat", "weight": 100}]),
        ("ModelRoute", "spec.affinity", {"header": "x-s", "mode": "strict"}),
    ),
}
KEYS: Final = '{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}'
VALUES: Final[Mapping[str, tuple[Any, ...]]] = {
    "metadata.name": ("other",),
    "metadata.namespace": ("other",),
    "metadata.labels": ({"a": "z"},),
    "metadata.annotations": ({"a": "z"},),
    "spec.model": ("m2", "m3", "m4"),
    "spec.stage": ("decode",),
    "spec.prefill.pool": ("second",),
    "spec.prefill.percent": (50,),
    "spec.listener.tls.callers.secret": ("clients",),
    "spec.listener.tls.callers.identityHeader": ("x-certificate",),
    "spec.prefill.tokensAbove": (500,),
    "spec.endpoints[].address": ("10.0.9.9", "e.example.com"),
    "spec.endpoints[].port": (8001,),
    "spec.endpoints[].agentPort": (9001,),
    "spec.endpoints[].name": ("q",),
    "spec.endpoints[].zone": ("z3",),
    "spec.endpoints[].region": ("r3",),
    "spec.endpoints[].revision": ("3.0",),
    "spec.endpoints[].slots": (4,),
    "spec.endpoints[].tensorParallelGroup": ("g",),
    "spec.endpoints[].labels": ({"a": "c"},),
    "spec.firstTokenGate": (False,),
    "spec.adapters[].name": ("law",),
    "spec.adapters[].path": ("/b",),
    "spec.adapters[].engines": (2,),
    "spec.longestServiceTime": ("99s",),
    "spec.slotsPerEngine": (3,),
    "spec.probe.metricsPath": ("/m",),
    "spec.probe.stallAfter": ("5s",),
    "spec.probe.loadPath": ("/l",),
    "spec.probe.hungRank": ("reduceShare",),
    "spec.probe.apiKeySecret": ("k",),
    "spec.tls.secret": ("s2",),
    "spec.tls.serverName": ("c.example.com", None),
    "spec.tls.subjectAltNames": (["c.example.com"],),
    "spec.listener.port": (8089,),
    "spec.listener.address": ("127.0.0.1",),
    "spec.listener.receiveTimeout": ("5s",),
    "spec.listener.trustedHops": (1,),
    "spec.listener.requestId": ("keep",),
    "spec.listener.requestFields": ("headers",),
    "spec.listener.accessLog": ("stdout",),
    "spec.listener.accessLogFile": ("/var/log/envoy/access.log",),
    "spec.listener.accessLogCollector.address": ("collector.test",),
    "spec.listener.accessLogCollector.port": (4318,),
    "spec.listener.accessLogCollector.tls.secret": ("s2",),
    "spec.listener.accessLogCollector.tls.serverName": ("collector",),
    "spec.listener.extAuth.address": ("other.test",),
    "spec.listener.extAuth.port": (9002,),
    "spec.listener.extAuth.tls.secret": ("s2",),
    "spec.listener.extAuth.tls.serverName": ("other.test",),
    "spec.listener.extAuth.protocol": ("grpc",),
    "spec.listener.extAuth.pathPrefix": ("/check",),
    "spec.listener.jwt.providers[].name": ("other",),
    "spec.listener.jwt.providers[].issuer": ("https://other.test",),
    "spec.listener.jwt.providers[].audiences": (["a"],),
    "spec.listener.jwt.providers[].remoteJwks.uri": ("https://other.test/keys",),
    "spec.listener.jwt.providers[].remoteJwks.tls.secret": ("s2",),
    "spec.listener.jwt.providers[].remoteJwks.tls.serverName": ("other.test",),
    "spec.listener.jwt.providers[].localJwks.inline": (KEYS,),
    "spec.listener.jwt.providers[].localJwks.file": ("/etc/envoy/keys.json",),
    "spec.listener.jwt.providers[].claimToHeaders[].claim": ("name",),
    "spec.listener.jwt.providers[].claimToHeaders[].header": ("x-other",),
    "spec.listener.tenants.header": ("x-other",),
    "spec.listener.tenants.named[].name": ("b",),
    "spec.listener.tenants.named[].requests": (20,),
    "spec.listener.tenants.named[].burst": (2,),
    "spec.listener.tenants.named[].tokens": (200, None),
    "spec.listener.tenants.named[].tokensBurst": (20,),
    "spec.listener.tenants.fairShares": (False,),
    "spec.listener.tenants.others.requests": (20,),
    "spec.listener.tenants.others.burst": (2,),
    "spec.listener.tenants.others.tokens": (200, None),
    "spec.listener.tenants.others.tokensBurst": (20,),
    **{
        f"spec.listener.tenants.{tenant}.{period}.{field}": values
        for tenant in ("named[]", "others")
        for period in ("perDay", "perMonth")
        for field, values in (("requests", (200,)), ("tokens", (200, None)))
    },
    "spec.listener.deadline.header": ("x-deadline",),
    "spec.listener.deadline.form": ("s",),
    "spec.listener.tls.secret": ("s2",),
    "spec.match.pathPrefix": ("/v2",),
    "spec.match.headers[].name": ("x-b",),
    "spec.match.headers[].exact": ("c",),
    "spec.match.headers[].prefix": ("a",),
    "spec.match.headers[].regex": ("a+",),
    "spec.match.model": ("q", None),
    "spec.match.stream": (False, None),
    "spec.pools[].pool": ("last",),
    "spec.fallbacks": (["last"], ["last", "small"], []),
    "spec.objectives.goodPercent": (99,),
    "spec.objectives.firstToken.p95": ("2s",),
    "spec.objectives.firstToken.p99": ("5s",),
    "spec.objectives.total.p95": ("30s",),
    "spec.objectives.total.p99": ("60s",),
    "spec.objectives.betweenTokens.p95": ("75ms",),
    "spec.objectives.betweenTokens.p99": ("100ms",),
    "spec.allowedRegions": (["r1"],),
    "spec.affinity.mode": ("soft", "strict"),
    "spec.affinity.header": ("x-other",),
    "spec.adapterCanary.name": ("v3",),
    "spec.adapterCanary.percent": (10,),
    "spec.staticAnswer.fromLevel": (1, 4),
    "spec.staticAnswer.status": (200,),
    "spec.staticAnswer.contentType": ("text/plain",),
    "spec.staticAnswer.retryAfter": ("9s",),
    "spec.staticAnswer.body": ('{"busy": true}',),
    "spec.affinity.cookie.name": ("other",),
    "spec.affinity.cookie.ttl": ("2h",),
    "spec.affinity.cookie.path": ("/other",),
    "spec.pools": (["chat", "spare"],),
    "spec.breaker.interval": ("0.5s", "9s"),
    "spec.breaker.windowCalls": (26, 250),
    "spec.breaker.maxCooldown": ("999s",),
    "spec.breaker.countStatuses": ([500],),
    "spec.limits.concurrentPerSlot": (2.0,),
    "spec.retries.conditions": (["connect-failure"],),
    "spec.retries.statuses": ([503],),
    "spec.retryBudget.percent": (33,),
    "spec.timeouts.streaming.firstToken": ("9s",),
    "spec.timeouts.nonStreaming.perTry": ("9s",),
    "spec.timeouts.nonStreaming.byTokens.perToken": ("20ms",),
    "spec.hedging.enabled": (False,),
    "spec.hedging.delay": ("2s", None),
    "spec.regions.order": (["r2", "r1"],),
    "spec.slowStart.window": ("9s",),
    "spec.degradation.maintenance.message": ("gone",),
    **{
        f"spec.degradation.{level}.{trigger}": (value,)
        for level in ("noHedging", "fallback", "shed", "maintenance")
        for trigger, value in {
            "aboveFailedPercent": 30,
            "aboveEjectedPercent": 40,
            "aboveKvCachePercent": 95,
            "aboveThrottledPercent": 50,
            "aboveFirstToken": "9s",
        }.items()
    },
}
"""Values of a field whose type and default give none."""

FOUND_IN_A_CLUSTER: Final = "spec.kubernetes."
KEYED: Final = frozenset(f"spec.affinity.{one}" for one in ("mode", "slackPercent", "returnAfter", "moveWithin"))
BY_DECISION: Final = frozenset({"spec.breaker.cutHung", "spec.drain.deadline"})
"""Fields whose cold resources only a decision changes: about a hung or removed engine."""


def put(documents: Mapping[str, dict[str, Any]], kind: str, path: str, value: Any) -> dict[str, dict[str, Any]]:
    """The documents with one field set, in the first item of each list; removed if the value is None."""
    found = copy.deepcopy(dict(documents))
    *above, last = path.split(".")
    block = found[kind]
    for step in above:
        block = block.setdefault(step.removesuffix("[]"), {})
        block = block[0] if step.endswith("[]") else block
    if path.startswith("spec.match.headers[].") and last in {"prefix", "regex", "present"}:
        block.pop("exact", None)
    if path.endswith(".localJwks.file"):
        block.pop("inline", None)
    if path.startswith("spec.listener.tenants.") and last == "tokens" and value is None:
        # The last quota of tokens.
        tenants = found[kind]["spec"]["listener"]["tenants"]
        for quota in (*tenants["named"], tenants["others"]):
            quota.pop("tokens")
    if path.startswith("spec.affinity.cookie."):
        block |= {"name": "s", "ttl": "1h"}
    if path.startswith(("spec.affinity.cookie.", "spec.affinity.prefix.", "spec.affinity.tenant")):
        found[kind]["spec"]["affinity"].pop("header", None)
    if value is None:
        block.pop(last, None)
    else:
        block[last] = value
    return found


def other_values(doc: FieldDoc) -> tuple[Any, ...]:
    if doc.path in VALUES:
        return VALUES[doc.path]
    if doc.allowed.startswith("one of "):
        return tuple(one for one in doc.allowed.removeprefix("one of ").split(", ") if one != doc.default)
    found: dict[str, tuple[Any, ...]] = {
        "true or false": (True, False) if doc.default is None else (not doc.default,),
        "whole number": ((doc.default or 1) + 1,) if doc.type == "whole number" else (),
    }
    if isinstance(doc.default, str) and doc.type == "duration":
        return (f"{round(parse_duration(doc.default) * 1200) + 1}ms",)
    if isinstance(doc.default, float | int) and doc.type == "number":
        return (min(doc.default * 1.5, 97.0) if doc.default <= 100 else doc.default * 0.9,)
    return found.get(doc.type, ())


def built(documents: Mapping[str, dict[str, Any]]) -> BuildResult:
    text = "\n---\n".join(json.dumps(one) for one in (*documents.values(), *OTHERS))  # JSON is YAML
    renamed = documents["EnginePool"]["metadata"]["name"]
    policies = load_contents({Path("p.yaml"): text.replace('"pool": "chat"', f'"pool": "{renamed}"').encode()})
    inputs = BuildInputs(
        policies=policies,
        fleet=declared(policies),
        views=frozenset(VIEWS),
        proxies_by_role={"gateway": 2},
        now_s=0.0,
        nodes=NODES,
    )
    return PIPELINE.build(inputs)


def contents(built: BuildResult, view: View, url: str) -> dict[str, str]:
    return {name: content_of(one.version) for name, one in built.snapshots[view].of(url).items()}


def changed(before: BuildResult, after: BuildResult) -> Xds:
    found = Xds.NONE
    for view, url in itertools.product(VIEWS, PUSH_ORDER):
        if contents(before, view, url) != contents(after, view, url):
            found |= Xds[SHORT_NAMES[url]]
    if not same_own(before.own, after.own):
        found |= Xds.RTDS
    return found


@cache
def base(name: str) -> tuple[Mapping[str, dict[str, Any]], BuildResult]:
    documents: Mapping[str, dict[str, Any]] = RICH
    for kind, path, value in BASES[name]:
        documents = put(documents, kind, path, value)
    return documents, built(documents)


def refused(path: str, route: Mapping[str, Any]) -> bool:
    """Whether the loader refuses an edit of this field in this route."""
    affinity, canary = route.get("affinity", {}), "adapterCanary" in route
    return (
        (path.startswith("spec.adapterCanary.") and not canary)
        or (canary and path in {"spec.adapter", "spec.match.model", "spec.listener.requestFields", "spec.public"})
        or (canary and path.startswith("spec.affinity."))
        or (path == "spec.public" and "model" in route["match"])
        or (path == "spec.adapter" and "model" not in route["match"])
        or (path in KEYED and not affinity)
        or (path.startswith("spec.staticAnswer.") and "staticAnswer" not in route and not path.endswith("body"))
        or (path == "spec.affinity.mode" and len(route["pools"]) > 1)
        or (
            path.startswith(("spec.affinity.prefix.", "spec.affinity.tenant")) and affinity.get("mode") == "strict"
        )
    )


def edits(kind: str, doc: FieldDoc) -> Iterator[Xds]:
    """Resources changed by each edit of the field; none if a base lacks the block."""
    for name in BASES:
        if doc.path.startswith("spec.prefill.") is not (name == "stages"):
            continue  # refused
        documents, before = base(name)
        if doc.path.startswith("spec.tls.") and "tls" not in documents["EnginePool"]["spec"]:
            continue
        source = next((one for one in ("localJwks", "remoteJwks") if f".{one}." in doc.path), "name")
        route = documents["ModelRoute"]["spec"]
        if source not in route["listener"]["jwt"]["providers"][0]:
            continue
        if refused(doc.path, route):
            continue
        for value in other_values(doc):
            after = put(documents, kind, doc.path, value)
            if doc.path == "metadata.name" and kind == "EnginePool":
                after["ResiliencePolicy"]["spec"]["pools"] = [value]
            yield changed(before, built(after))


def cases() -> Iterator[Any]:
    for kind in RICH:
        for doc in leaves(kind):
            if doc.path not in {"apiVersion", "kind"} and not doc.path.startswith(FOUND_IN_A_CLUSTER):
                yield pytest.param(kind, doc, id=f"{kind}.{doc.path}")


@pytest.mark.parametrize(("kind", "doc"), list(cases()))
def test_an_edit_changes_the_resources_that_the_field_declares(kind: str, doc: FieldDoc) -> None:
    live = leaf_targets(kind)[doc.path].live
    found = list(edits(kind, doc))
    assert found, "give other values in VALUES"
    every = Xds.NONE
    for one in found:
        every |= one
    assert every & live == every, f"an edit also changes {every & ~live}: declare it"
    cold = live & (Xds.CDS | Xds.LDS)
    if doc.path not in BY_DECISION:
        assert cold & every == cold, f"no edit changes {cold & ~every}: it is not cold"


def test_renamed_pool_is_a_new_pool() -> None:
    doc = next(one for one in leaves("EnginePool") if one.path == "metadata.name")
    assert set(edits("EnginePool", doc)) == {leaf_targets("EnginePool")["metadata.name"].live}
